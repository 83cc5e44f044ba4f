package sglang

import (
	"net/http"

	"github.com/tandem-serving/tandem/sim/core"
)

// Request asks for one answer to one prompt.
type Request struct {
	// RID is the request id. Engines do not compare those of the two legs.
	RID      string
	Prompt   []int // the engine keeps it, and appends to it
	Sampling core.Sampling
	Salt     string
	Stream   bool // for the metrics page
	// Rendezvous says where the other leg is. A plain engine ignores it.
	Rendezvous Rendezvous
	// Rank is the rank that has to take the request, SGLang's routed_dp_rank; nil: the engine chooses one.
	Rank *int
}

// Rendezvous is where a leg meets the other one.
type Rendezvous struct {
	Room *Room
	Host string
	Port int // 0: the engine's own setting
	// PrefillRank is the rank that the prefill leg is at, SGLang's disagg_prefill_dp_rank; nil: what the room says.
	PrefillRank *int
	// Broken says that members had types which the scheduler cannot bear: a list for a single prompt.
	Broken bool
}

// fakeHost is the bootstrap host of requests without another leg, which the real engine uses for its health checks.
const fakeHost = "2.2.2.2"

// Failure is how the scheduler ends a request that it cannot serve.
type Failure struct {
	Status  int // of HTTP
	Message string
}

// Error implements error.
func (f *Failure) Error() string { return f.Message }

// noRoom refuses a request without a bootstrap room.
func noRoom(rid string) *Failure {
	return &Failure{http.StatusBadRequest, "Invalid request: Disaggregated request received without bootstrap room id. req.rid='" + rid + "'"}
}

// The causes of failed hand-offs, in SGLang's words.
const (
	causeAbort       = "Aborted by AbortReq."
	causeDecodeAbort = "Aborted by decode-side abort notification."
	causeDisconnect  = "KVSender failed to post prepped transfer: NIXL_ERR_REMOTE_DISCONNECT"
)

// failure returns the failure of a leg at its present stage.
func (l *leg) failure(cause string) *Failure {
	what, prefix := "Decode transfer", "decode_req."
	switch l.stage {
	case bootstrapping:
		what, prefix = "Prefill bootstrap", ""
	case prefilling, inflight:
		what, prefix = "Prefill transfer", ""
	case handshaking, preallocating:
		what = "Decode handshake"
	}
	room := l.req.Rendezvous.Room.String()
	return &Failure{http.StatusInternalServerError, what + " failed for request rank=0 " + prefix + "req.rid='" + l.req.RID + "' " + prefix +
		"req.bootstrap_room=" + room + " with exception KVTransferError(bootstrap_room=" + room + "): " + cause}
}
