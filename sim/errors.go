package sim

import (
	"fmt"
	"net/http"
)

// apiError is an answer that is not a success, in the engine's envelope:
// {"error":{"message":…,"type":…,"param":…,"code":…}}.
type apiError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"` // the HTTP status

	// schema: found before the engine's handlers saw the request. Such a refusal does not release a hand-off.
	schema bool
}

// The types of the envelope. Errors of request models say "Bad Request", those of handlers "BadRequestError".
const (
	typeBadRequest  = "BadRequestError"
	typeSchema      = "Bad Request"
	typeNotFound    = "NotFoundError"
	typeInternal    = "InternalServerError"
	typeUnavailable = "Service Unavailable"
)

var (
	errEngineDead = &apiError{Message: "EngineCore encountered an issue. See stack trace (above) for the root cause.", Type: typeInternal, Code: http.StatusInternalServerError}
	errInternal   = &apiError{Message: "Internal server error", Type: typeInternal, Code: http.StatusInternalServerError}
	errBusy       = &apiError{Message: "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.", Type: typeUnavailable, Code: http.StatusServiceUnavailable}
)

// badRequest is a refusal by a handler.
func badRequest(format string, args ...any) *apiError {
	return &apiError{Message: fmt.Sprintf(format, args...), Type: typeBadRequest, Code: http.StatusBadRequest}
}

// badParameter is a refusal that names the parameter, and its value where there is one.
func badParameter(parameter, value, format string, args ...any) *apiError {
	suffix := " (parameter=" + parameter
	if value != "" {
		suffix += ", value=" + value
	}
	return &apiError{Message: fmt.Sprintf(format, args...) + suffix + ")", Type: typeBadRequest, Param: &parameter, Code: http.StatusBadRequest}
}

// inSchema marks a refusal as found by the request model.
func (e *apiError) inSchema() *apiError {
	e.schema = true
	return e
}

func unknownModel(name, served string) *apiError {
	param := "model"
	return &apiError{
		Message: fmt.Sprintf("The model `%s` does not exist. Valid aliases: %s.", name, served),
		Type:    typeNotFound, Param: &param, Code: http.StatusNotFound,
	}
}

// anthropicPath is where errors have Anthropic's envelope, but for those of the request model.
const anthropicPath = "/v1/messages"

// envelope is how the error appears in the body of an answer on that path.
func (e *apiError) envelope(path string) any {
	if path == anthropicPath && !e.schema {
		type anthropicError struct {
			Type    string `json:"type"`
			Message string `json:"message"`
		}
		return struct {
			Type  string         `json:"type"`
			Error anthropicError `json:"error"`
		}{"error", anthropicError{e.Type, e.Message}}
	}
	return struct {
		Error *apiError `json:"error"`
	}{e}
}

// event is how the error appears inside of a stream: with blanks, unlike anywhere else.
func (e *apiError) event() string {
	return fmt.Sprintf(`{"error": {"message": %s, "type": %s, "param": null, "code": %d}}`, encodeJSON(e.Message), encodeJSON(e.Type), e.Code)
}
