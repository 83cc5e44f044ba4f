package api

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/web"
)

// maxProblems is how many validation errors an answer lists.
const maxProblems = 10

// parseBody reads a JSON object.
func parseBody(body []byte) (*web.Fields, *apiError) {
	if len(body) == 0 {
		return nil, schemaError([]web.Problem{{Kind: "missing", Loc: "body", Message: "Field required", Input: "None"}})
	}
	if position, message := pyjson.FindSyntaxError(body); message != "" {
		return nil, jsonError(position, message)
	}
	f := web.ReadObject(body)
	if f == nil {
		return nil, schemaError([]web.Problem{{Kind: "model_attributes_type", Loc: "body",
			Message: "Input should be a valid dictionary or object to extract fields from", Input: pyjson.Describe(body)}})
	}
	return f, nil
}

func jsonError(position int, message string) *apiError {
	loc := "body." + strconv.Itoa(position)
	return &apiError{
		Message: fmt.Sprintf("1 validation error:\n  {'type': 'json_invalid', 'loc': '%s', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {'error': %s}}",
			loc, pyjson.Quote(message)),
		Type: typeSchema, Param: &loc, Code: http.StatusBadRequest, schema: true,
	}
}

func schemaError(problems []web.Problem) *apiError {
	var b strings.Builder
	fmt.Fprintf(&b, "%d validation error", len(problems))
	if len(problems) > 1 {
		b.WriteByte('s')
	}
	b.WriteByte(':')
	for i, p := range problems {
		if i == maxProblems {
			fmt.Fprintf(&b, "\n  ...and %d more errors", len(problems)-maxProblems)
			break
		}
		fmt.Fprintf(&b, "\n  {'type': %s, 'loc': %s, 'msg': %s, 'input': %s}", pyjson.Quote(p.Kind), pyjson.Quote(p.Loc), pyjson.Quote(p.Message), pyjson.Quote(p.Input))
	}
	return &apiError{Message: b.String(), Type: typeSchema, Param: &problems[0].Loc, Code: http.StatusBadRequest, schema: true}
}

// problemsOf returns the error of a body with wrong types, or nil.
func problemsOf(f *web.Fields) *apiError {
	if len(f.Problems) == 0 {
		return nil
	}
	return schemaError(f.Problems)
}
