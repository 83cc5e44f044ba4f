package dialect

import (
	"crypto/rand"
	"fmt"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

// Puller is a Dialect of engines that, before they compute a prompt, fetch blocks of it from the memory of a third engine, by vLLM's
// OffloadingConnector with a peer-to-peer tier. What is not there they compute.
type Puller interface {
	// Tier returns where the memory of an engine is reached, by its pod and its data-parallel rank; ok is false if the engines do not
	// pull, or the rank has no port. An engine that is sent to a place where none listens loses its sessions with others, so callers make
	// sure that one does.
	Tier(source pd.Target, rank int) (tier pd.Target, ok bool)
	// Pull returns the body of a leg for an engine that serves the request alone.
	Pull(r *request.Request, tier pd.Target) (request.Payload, error)
}

// PullAttempt is an Attempt whose prefill engine pulls.
type PullAttempt interface {
	Attempt
	// PullFrom names the memory, before the prefill leg is made.
	PullFrom(tier pd.Target)
}

// pulls implements Puller.
type pulls struct {
	port int // of the peer-to-peer tier; a data-parallel rank has the port of its number above it. 0: the engines do not pull
}

// Tier implements Puller.
func (p pulls) Tier(source pd.Target, rank int) (pd.Target, bool) {
	port := p.port + rank
	return pd.Target{Host: source.Host, Port: uint16(port)}, p.port > 0 && port <= 65535
}

// Pull implements Puller.
func (p pulls) Pull(r *request.Request, tier pd.Target) (request.Payload, error) {
	e, err := r.Edit()
	if err != nil {
		return request.Payload{}, err
	}
	e.Set("kv_transfer_params", append(appendSource([]byte("{"), tier), '}'))
	return e.Payload()
}

// appendSource appends the member of kv_transfer_params that names the memory. Its number is for this leg only.
func appendSource(b []byte, tier pd.Target) []byte {
	b = appendJSON(append(b, `"remote_kv_source":{"kv_request_id":"tandem-`+rand.Text()+`","remote_host":`...), tier.Host)
	return fmt.Appendf(b, `,"remote_port":%d}`, tier.Port)
}
