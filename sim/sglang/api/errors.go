package api

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/sglang"
	"github.com/tandem-serving/tandem/sim/web"
)

// errorBody is the envelope of most errors.
type errorBody struct {
	Object  string  `json:"object"`
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

// messageBody is the envelope of /generate for values that it refuses.
type messageBody struct {
	Error struct {
		Message string `json:"message"`
	} `json:"error"`
}

// schemaProblem is an error of a request model.
type schemaProblem struct{ text string }

// Error implements error.
func (e *schemaProblem) Error() string { return e.text }

// contractProblem is an error of a type that /generate does not convert, although its request model would.
type contractProblem struct{ text string }

// Error implements error.
func (e *contractProblem) Error() string { return e.text }

// badValue refuses a value.
func badValue(format string, args ...any) *sglang.Failure {
	return &sglang.Failure{Status: http.StatusBadRequest, Message: fmt.Sprintf(format, args...)}
}

// errBroken is the error of a request that breaks a handler, which answers brokenText.
var errBroken = errors.New("the request breaks the handler")

const brokenText = "Internal Server Error"

// schemaError makes the error of a request model. The real message goes on with a path and line of the server's code.
func (c *call) schemaError(text string) error {
	return &schemaProblem{text + "\n\n  File \"http_server.py\", line 1, in " + strings.Trim(c.R.URL.Path, "/") + "\n    " +
		c.R.Method + " " + c.R.URL.Path}
}

// problemsOf returns the error of a body with wrong types, or nil.
func (c *call) problemsOf(f *web.Fields) error {
	if len(f.Problems) == 0 {
		return nil
	}
	var list []string
	for _, p := range f.Problems {
		loc := "'" + strings.ReplaceAll(p.Loc, ".", "', '") + "'"
		list = append(list, "{'type': "+pyjson.Quote(p.Kind)+", 'loc': ("+loc+"), 'msg': "+pyjson.Quote(p.Message)+", 'input': "+p.Input+"}")
	}
	s := ""
	if len(list) > 1 {
		s = "s"
	}
	return &schemaProblem{fmt.Sprintf("%d validation error%s:\n  %s\n\n  File \"http_server.py\", line 1, in %s\n    %s %s [%s]", len(list), s,
		strings.Join(list, "\n  "), strings.Trim(c.R.URL.Path, "/"), c.R.Method, c.R.URL.Path, strings.Join(list, ", "))}
}

// fail answers with an error.
func (c *call) fail(err error) {
	var (
		schema   *schemaProblem
		contract *contractProblem
		failure  *sglang.Failure
	)
	switch {
	case errors.As(err, &schema):
		c.JSON(http.StatusBadRequest, errorBody{"error", schema.text, "Bad Request", nil, http.StatusBadRequest})
	case errors.As(err, &contract):
		c.JSON(http.StatusBadRequest, struct {
			Error string `json:"error"`
		}{contract.text})
	case errors.As(err, &failure):
		c.failure(failure)
	default:
		c.W.Header().Del("Vary") // no middleware sees the answer
		c.Text(http.StatusInternalServerError, brokenText)
	}
}

// failure answers with what the engine refuses, or cannot do, in the form of the path.
func (c *call) failure(f *sglang.Failure) {
	switch path := c.R.URL.Path; {
	case path == responsesPath: // whose handler takes every error for one of the request
		message := f.Message
		if f.Status != http.StatusBadRequest {
			message = strconv.Itoa(f.Status) + ": " + message
		}
		c.JSON(http.StatusBadRequest, pyjson.Object{member("error", pyjson.Object{member("message", message),
			member("type", "invalid_request_error"), member("param", nil), member("code", http.StatusBadRequest)})})
	case path == messagesPath:
		c.JSON(f.Status, anthropicError(f, true))
	case path == generatePath && f.Status == http.StatusBadRequest:
		var body messageBody
		body.Error.Message = f.Message
		c.JSON(f.Status, body)
	default:
		kind := strconv.Itoa(f.Status)
		if f.Status == http.StatusBadRequest {
			kind = "BadRequestError"
		}
		c.JSON(f.Status, errorBody{"error", f.Message, kind, nil, f.Status})
	}
}

// anthropicError is the envelope of /v1/messages, which tells little of errors that are not the client's.
func anthropicError(f *sglang.Failure, scrub bool) any {
	kind, message := "api_error", f.Message
	if f.Status == http.StatusBadRequest {
		kind = "invalid_request_error"
	} else if scrub {
		message = "Internal server error"
	}
	return pyjson.Object{member("type", "error"), member("error", pyjson.Object{member("type", kind), member("message", message)})}
}

// streamError is the event of an OpenAI stream that fails after its headers. Unlike in other answers, its JSON has blanks.
func streamError(f *sglang.Failure) string {
	kind := "INTERNAL_SERVER_ERROR"
	if f.Status == http.StatusBadRequest {
		kind = "BAD_REQUEST"
	}
	return fmt.Sprintf(`data: {"error": {"object": "error", "message": %s, "type": %q, "param": null, "code": %d}}`+"\n\n", pyjson.Encode(f.Message), kind, f.Status)
}

// failureOf returns an engine's error as a failure. The second result is false if the engine has died: nothing answers then.
func failureOf(err error) (*sglang.Failure, bool) {
	var f *sglang.Failure
	if errors.As(err, &f) {
		return f, true
	}
	return nil, !errors.Is(err, core.ErrDead)
}

// member makes a member of an object whose order matters.
func member(name string, value any) pyjson.Member { return pyjson.Member{Name: name, Value: value} }
