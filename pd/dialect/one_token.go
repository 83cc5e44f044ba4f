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
