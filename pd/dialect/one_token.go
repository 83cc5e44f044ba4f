package dialect

import (
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

// OneToken sets the members that make an engine compute the prompt and one token, without a stream. Most serial protocols use
// it for the prefill leg.
func OneToken(r *request.Request, e *request.Edit) {
	if r.Stream() {
		e.Set("stream", jsonFalse)
	}
	e.Drop("stream_options")
	e.Drop("min_tokens")
	switch r.API {
	case pd.APIGenerate:
		e.Drop("sampling_params.min_tokens")
		e.Set("sampling_params.max_tokens", jsonOne)
		return
	case pd.APIResponses:
		e.Set("max_output_tokens", jsonOne)
		e.Set("store", jsonFalse) // a prefill engine that stores answers would store one that no client knows
		return
	}
	completionLimit, limit := r.Has("max_completion_tokens"), r.Has("max_tokens")
	if completionLimit {
		e.Set("max_completion_tokens", jsonOne)
	}
	if limit || !completionLimit || r.API != pd.APIChat {
		e.Set("max_tokens", jsonOne)
	}
}

// limitControls are the members that endByLimit changes, for Controller.
var limitControls = []string{"ignore_eos", "stop", "stop_token_ids", "stop_sequences", "sampling_params.ignore_eos", "sampling_params.stop",
	"sampling_params.stop_token_ids"}

// endByLimit drops from the prefill leg of a vLLM engine what may end it by its first token.
func endByLimit(r *request.Request, e *request.Edit) {
	switch r.API {
	case pd.APIGenerate:
		e.Drop("sampling_params.stop")
		e.Drop("sampling_params.stop_token_ids")
		e.Set("sampling_params.ignore_eos", jsonTrue)
	case pd.APIMessages: // which has no way to ignore the end of a sequence
		e.Drop("stop_sequences")
	default:
		e.Drop("stop")
		e.Drop("stop_token_ids")
		e.Set("ignore_eos", jsonTrue)
	}
}

// limitEnd is in a vLLM engine's answer to a leg that ended by its limit. Quotes in a text are escaped, so no text contains it.
var limitEnd = map[pd.API][]byte{
	pd.APIChat:        []byte(`"finish_reason":"length"`),
	pd.APICompletions: []byte(`"finish_reason":"length"`),
	pd.APIGenerate:    []byte(`"finish_reason":"length"`),
	pd.APIResponses:   []byte(`"status":"incomplete"`),
	pd.APIMessages:    []byte(`"stop_reason":"max_tokens"`),
}
