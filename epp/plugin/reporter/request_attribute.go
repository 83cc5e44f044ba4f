package reporter

import (
	"fmt"
	"math"
	"time"

	"github.com/google/cel-go/cel"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/loglimit"
)

// RequestAttribute reports a number about each answer to the gateway, as dynamic metadata: what its rate limits or its access log
// should count. The number is computed from the answer's token counts. They come from the sidecar; with another sidecar they are known
// only if the gateway sends the answers through the picker and the engine tells them, for which a client that streams must ask. Where
// they are not known, and where the number is 0, nothing is reported. With a pair of filters, an answer is not reported that another
// replica picked for.
type RequestAttribute struct {
	// Attributes has one entry: llm-d allows no other number.
	Attributes []ReportedAttribute `yaml:"attributes"`
}

// ReportedAttribute is a number that is reported.
type ReportedAttribute struct {
	// Key is where the number goes.
	Key AttributeKey `yaml:"key"`
	// Expression is the number, in CEL. The variable usage has prompt_tokens, completion_tokens, total_tokens and, if it is known,
	// prompt_token_details.cached_tokens, all of them floating-point numbers. The result is rounded towards 0.
	Expression string `yaml:"expression"`
	// Condition says in CEL whether the number is reported. Default "": always.
	Condition string `yaml:"condition"`
}

// AttributeKey is a place in the dynamic metadata of a request.
type AttributeKey struct {
	// Namespace is the outer key. The gateway must allow it: receiving_namespaces of Envoy's filter. Default envoy.lb.
	Namespace string `yaml:"namespace"`
	// Name is the inner key.
	Name string `yaml:"name"`
}

// NewRequestAttribute returns the parameters with their defaults.
func NewRequestAttribute() epp.Plugin { return &RequestAttribute{} }

// Problems implements epp.Plugin.
func (p *RequestAttribute) Problems(report epp.Report) {
	if len(p.Attributes) != 1 {
		report("attributes", "must have one entry, got %d", len(p.Attributes))
		return
	}
	a := &p.Attributes[0]
	if a.Key.Name == "" {
		report("attributes[0].key.name", "must not be empty")
	}
	if a.Expression == "" {
		report("attributes[0].expression", "must not be empty")
	}
}

// Build implements epp.Plugin.
func (p *RequestAttribute) Build(b *epp.Builder) (any, error) {
	a := &p.Attributes[0]
	r := &requestAttribute{AttributeKey: a.Key, log: loglimit.New(b.Log, time.Minute)}
	if r.Namespace == "" {
		r.Namespace = epp.NamespaceLB
	}
	var err error
	if r.expression, err = compile(a.Expression, cel.DoubleType, cel.IntType, cel.UintType); err != nil {
		return nil, fmt.Errorf("attributes[0].expression: %w", err)
	}
	if a.Condition != "" {
		if r.condition, err = compile(a.Condition, cel.BoolType); err != nil {
			return nil, fmt.Errorf("attributes[0].condition: %w", err)
		}
	}
	return r, nil
}

const usageVariable = "usage"

// compile prepares an expression whose result has one of some types.
func compile(text string, types ...*cel.Type) (cel.Program, error) {
	env, err := cel.NewEnv(cel.Variable(usageVariable, cel.MapType(cel.StringType, cel.DynType)))
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(text)
	if issues.Err() != nil {
		return nil, issues.Err()
	}
	got := ast.OutputType()
	for _, t := range append(types, cel.DynType) {
		if got.IsExactType(t) {
			return env.Program(ast)
		}
	}
	return nil, fmt.Errorf("its result is of type %s, want %s", got, types[0])
}

type requestAttribute struct {
	AttributeKey
	expression, condition cel.Program // condition nil: always
	log                   *loglimit.Limiter
}

// Report implements epp.Reporter.
func (r *requestAttribute) Report(u body.Usage, set func(namespace, key string, value float64)) {
	value, ok, err := r.value(u)
	if err != nil {
		r.log.Warn("attribute of an answer cannot be computed", "attribute", r.Name, "error", err)
	}
	if ok {
		set(r.Namespace, r.Name, value)
	}
}

// value computes the number; ok is false if none is to be reported.
func (r *requestAttribute) value(u body.Usage) (value float64, ok bool, err error) {
	variables := map[string]any{usageVariable: variable(u)}
	if r.condition != nil {
		met, _, err := r.condition.Eval(variables)
		if err != nil {
			return 0, false, fmt.Errorf("the condition: %w", err)
		}
		if met.Value() != true {
			return 0, false, nil
		}
	}
	result, _, err := r.expression.Eval(variables)
	if err != nil {
		return 0, false, fmt.Errorf("the expression: %w", err)
	}
	switch v := result.Value().(type) {
	case float64:
		value = math.Trunc(v)
	case int64:
		value = float64(v)
	case uint64:
		value = float64(v)
	default:
		return 0, false, fmt.Errorf("the result of the expression is %v, want a number", v)
	}
	return value, value != 0 && !math.IsNaN(value) && !math.IsInf(value, 0), nil
}

// variable returns the counts as llm-d names them. A count that is not known is 0.
func variable(u body.Usage) map[string]any {
	prompt, completion := float64(max(u.Prompt, 0)), float64(max(u.Completion, 0))
	v := map[string]any{"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
	if u.Cached >= 0 {
		v["prompt_token_details"] = map[string]any{"cached_tokens": float64(u.Cached)}
	}
	return v
}
