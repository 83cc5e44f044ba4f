package dialect

import (
	"errors"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

// Dialect is one serial hand-off protocol: prefill first, then decode with what prefill offered.
type Dialect interface {
	// Prefill gives the body of the prefill leg: one token, no stream, and the mark that makes the engine keep the KV cache.
	Prefill(r *request.Request) (request.Payload, error)
	// Accept reads the whole answer of a prefill leg that ended with status 200. An error means that the answer offers
	// nothing that is safe to use; ErrNoOffer, that it offers nothing at all.
	Accept(answer []byte) (Offer, error)
	// Decode gives the body of the decode leg, which takes the offer up.
	Decode(r *request.Request, o Offer) (request.Payload, error)
	// Release gives the body of a decode leg that is sent only to be cancelled once the engine answers its first byte: it
	// takes the offer up, so that the prefill engine is told, and shows soonest that it has.
	Release(r *request.Request, o Offer) (request.Payload, error)
}

// ErrNoOffer says that a prefill engine offers nothing, so it holds nothing either.
var ErrNoOffer = errors.New("prefill answered without a hand-off (kv_transfer_params): is a KV connector configured on it?")

// Forgetter is a Dialect that can make a decode engine give an offer back although it refused the request the offer was
// made for: by another request, which the engine refuses only after it has taken the offer in.
type Forgetter interface {
	Forget(o Offer) (path string, body []byte)
}

// Offer is what a prefill engine offers to the decode engine.
type Offer struct {
	Handoff pd.Handoff
	// PromptTokens and CachedTokens are prefill's own counts for this prompt; -1 = it did not say.
	PromptTokens, CachedTokens int64
}

// CorrectsUsage reports whether decode's count of cached tokens has to be replaced by prefill's: an engine that does not
// hand its count over makes decode report every pulled token as cached. Engines that do are never touched.
func (o Offer) CorrectsUsage() bool { return o.Handoff.Cached < 0 && o.CachedTokens >= 0 }
