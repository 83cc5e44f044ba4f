package matrix

import (
	"slices"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
)

// push is vLLM's protocol with NixlPushConnector.
var push = &protocol{name: "push", dialect: pushDialect(), pushes: true, notices: true, text: "testdata/push.txt", head: pushHead, list: pushFailures,
	effects: effects, ways: ways, apis: apis, firstEvents: firstEvents}

func pushDialect() dialect.Dialect {
	d, _ := dialect.New("nixl-push", dialect.Options{Lease: lease})
	return d
}

const pushHead = `What a client gets from vLLM's engines with NixlPushConnector, as matrix.txt shows it for NixlConnector.

The sidecar tells prefill itself of each hand-off that decode does not take [direct], if it has a keeper. A decode engine tells
prefill only by taking it: a leg that is cancelled when decode has begun to wait for the KV cache [by decode] frees both. Of any
other hand-off the blocks stay pinned until its lease ends [lost: why]; the KV cache may be on its way then, so that no other
component may release it.
`

// writing is why a hand-off is not released.
const writing loss = "prefill may be writing to decode, and only the end of that, or of the lease, ends it"

// pushFailures are those of vLLM's protocol, without what prefill says of its blocks: decode does not read it.
func pushFailures() []failure {
	list := slices.Concat(
		in(received, bodyFailures),
		in(prefilling, without("stale", prefillFailures)),
		in(handedOff, without("hand-off too old", handoffFailures)),
		in(beforeHeaders, headerFailures),
		in(beforeEvent, eventFailures),
		in(streaming, streamFailures),
	)
	for i := range list {
		s := &list[i]
		switch {
		case s.action == freeze, s.action == kill: // which the sidecar notices before decode does
			s.cause = "gone"
		case s.name == "crash" && s.state == beforeHeaders: // decode says so
			s.release, s.lost = direct, decodeLost
		case s.effect == decodeGone:
			s.release = byDecode
		case s.name == "status 503": // decode does not tell prefill that it has not admitted a request
			s.release = byEffect
		}
		if byDecode := s.release == byDecode || s.release == byEffect && ways[s.effect] == byDecode; byDecode && s.action != kill {
			if s.lost = writing; s.stray { // decode has the KV cache
				s.lost = notLost
			}
		}
	}
	return list
}

// ofPush returns the row if it is run: with half of the forms and APIs, in two situations, and with those APIs in which the engines match
// legs in ways of their own.
func (r row) ofPush() []row {
	common := r.api == pd.APICompletions || r.api == pd.APIChat
	if r.situation > last || r.stream == (r.api == pd.APIChat) || r.situation != last && (r.quick || !common) || r.quick && !common {
		return nil
	}
	return []row{r}
}
