package plugin

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd/body"
)

// reporting returns the parameters of a reporter of one attribute.
func reporting(rest string) string { return "attributes: [{key: {name: cost}, " + rest + "}]" }

func TestRequestAttribute(t *testing.T) {
	full := body.Usage{Prompt: 100, Cached: 40, Completion: 7}
	for _, tc := range []struct {
		name, parameters string
		usage            body.Usage
		want             string
	}{
		{"a count", reporting("expression: usage.completion_tokens"), full, "envoy.lb cost 7"},
		{"a sum", reporting("expression: usage.prompt_tokens + usage.completion_tokens"), full, "envoy.lb cost 107"},
		{"the total", reporting("expression: usage.total_tokens"), full, "envoy.lb cost 107"},
		{"a weighed sum, rounded", reporting("expression: usage.prompt_tokens * 0.15 + usage.completion_tokens * 0.5"), full, "envoy.lb cost 18"},
		{"without what is cached", reporting("expression: usage.prompt_tokens - usage.prompt_token_details.cached_tokens"), full, "envoy.lb cost 60"},
		{"a whole number", reporting("expression: '3'"), full, "envoy.lb cost 3"},
		{"of no sign", reporting("expression: uint(4)"), full, "envoy.lb cost 4"},
		{"negative", reporting("expression: usage.completion_tokens - usage.prompt_tokens"), full, "envoy.lb cost -93"},
		{"another namespace", "attributes: [{key: {namespace: mine, name: cost}, expression: usage.total_tokens}]", full, "mine cost 107"},
		{"condition met", reporting("expression: usage.completion_tokens, condition: has(usage.completion_tokens)"), full, "envoy.lb cost 7"},
		{"condition not met", reporting("expression: usage.completion_tokens, condition: usage.prompt_tokens > 100.0"), full, ""},
		{"zero", reporting("expression: usage.completion_tokens"), body.Usage{Prompt: 5, Cached: -1}, ""},
		{"a count that is not known is zero", reporting("expression: usage.prompt_tokens + usage.completion_tokens"), body.Usage{Prompt: 5, Cached: -1, Completion: -1}, "envoy.lb cost 5"},
		{"no detail", reporting("expression: usage.prompt_token_details.cached_tokens"), body.Usage{Prompt: 5, Cached: -1, Completion: 1}, ""},
		{"no such count", reporting("expression: usage.images"), full, ""},
		{"no number", reporting("expression: usage.prompt_token_details"), full, ""},
		{"infinite", reporting("expression: usage.prompt_tokens / 0.0"), full, ""},
		{"condition that fails", reporting("expression: usage.prompt_tokens, condition: usage.images > 1.0"), full, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			build[epp.Reporter](t, "request-attribute-reporter", tc.parameters).Report(tc.usage, func(namespace, key string, value float64) {
				got = append(got, fmt.Sprint(namespace, " ", key, " ", value))
			})
			if text := strings.Join(got, "|"); text != tc.want {
				t.Errorf("%q, want %q", text, tc.want)
			}
		})
	}
}

// TestRequestAttributeIsCompiled: expressions that cannot be evaluated are problems of the configuration.
func TestRequestAttributeIsCompiled(t *testing.T) {
	for parameters, want := range map[string]string{
		reporting("expression: usage.prompt_tokens +"):                        "attributes[0].expression: ERROR: <input>:1:22: Syntax error",
		reporting("expression: tokens"):                                       "attributes[0].expression: ERROR: <input>:1:1: undeclared reference to 'tokens'",
		reporting("expression: has(usage.prompt_tokens)"):                     "attributes[0].expression: its result is of type bool, want double",
		reporting("expression: usage.prompt_tokens, condition: '1'"):          "attributes[0].condition: its result is of type int, want bool",
		reporting("expression: usage.prompt_tokens, condition: 'usage.a + '"): "attributes[0].condition: ERROR: <input>:1:11: Syntax error",
	} {
		p, err := decode(t, "request-attribute-reporter", parameters)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Build(builder()); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: error %v, want %s", parameters, err, want)
		}
	}
}
