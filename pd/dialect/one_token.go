package dialect

import (
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

// OneToken edits the members that make an engine compute a prompt and one token, without a stream: what most serial
// protocols ask a prefill engine for.
func OneToken(r *request.Request, e *request.Edit) {
	if r.Stream() {
		e.Set("stream", jsonFalse)
	}
	e.Drop("stream_options")
	e.Drop("min_tokens")
	completionLimit, limit := r.Has("max_completion_tokens"), r.Has("max_tokens")
	if completionLimit {
		e.Set("max_completion_tokens", jsonOne)
	}
	if limit || !completionLimit || r.API != pd.APIChat {
		e.Set("max_tokens", jsonOne)
	}
}
