package api

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/pyjson"
)

// apiError is an error answer in the engine's envelope:
// {"error":{"message":…,"type":…,"param":…,"code":…}}.
type apiError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"` // the HTTP status

	schema bool // found by the request model, before a handler: such a refusal does not release a hand-off
}

// The types of the envelope. Errors of request models have "Bad Request", those of handlers "BadRequestError".
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

// engineError returns the answer for an error of the engine.
func engineError(err error) *apiError {
	switch {
	case errors.Is(err, sim.ErrBusy):
		return errBusy
	case errors.Is(err, sim.ErrLoadFailed), errors.Is(err, sim.ErrNoEncoding):
		return errInternal
	}
	return errEngineDead
}

// statusError returns the answer of a status fault.
func statusError(code int) *apiError {
	switch code {
	case http.StatusServiceUnavailable:
		return errBusy
	case http.StatusInternalServerError:
		return errInternal
	}
	return &apiError{Message: http.StatusText(code), Type: http.StatusText(code), Code: code}
}

// badRequest makes the error of a request that a handler refuses.
func badRequest(format string, args ...any) *apiError {
	return &apiError{Message: fmt.Sprintf(format, args...), Type: typeBadRequest, Code: http.StatusBadRequest}
}

// badParameter makes an error that names the parameter, and its value unless that is empty.
func badParameter(parameter, value, format string, args ...any) *apiError {
	suffix := " (parameter=" + parameter
	if value != "" {
		suffix += ", value=" + value
	}
	return &apiError{Message: fmt.Sprintf(format, args...) + suffix + ")", Type: typeBadRequest, Param: &parameter, Code: http.StatusBadRequest}
}

// inSchema marks an error as found by the request model.
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

// The paths whose errors have Anthropic's envelope, except those of the request model.
const (
	anthropicPath   = "/v1/messages"
	countTokensPath = anthropicPath + "/count_tokens"
)

// responsesPath is the path whose streams have no error event.
const responsesPath = "/v1/responses"

// envelope returns the body of an answer with the error on a path.
func (e *apiError) envelope(path string) any {
	if (path == anthropicPath || path == countTokensPath) && !e.schema {
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

// event returns the error as the data of an event. Unlike in other answers, its JSON has blanks.
func (e *apiError) event() string {
	return fmt.Sprintf(`{"error": {"message": %s, "type": %s, "param": null, "code": %d}}`, pyjson.Encode(e.Message), pyjson.Encode(e.Type), e.Code)
}
