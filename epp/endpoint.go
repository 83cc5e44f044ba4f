package epp

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// Endpoint is one address that serves requests: a pod, or one rank of it. Its fields do not change: a pod whose labels change
// becomes a new version of its Endpoint (With), and one whose address changes a new Endpoint. It is in use until the last
// request charged to it has ended, which may be long after it left the pool.
type Endpoint struct {
	Name      string // unique in the pool
	Namespace string
	Addr      netip.AddrPort
	Address   string // Addr in the form of headers: IPv6 in brackets
	Metrics   string // host:port of the metrics page
	Role      pd.Role
	Labels    map[string]string
	Pod       string // the name of its pod
	Node      string // host:port of its address, with that of its node in place of its own; "" = not known
	// Slot is a small number that no other endpoint of the pool has at the same time; all versions of an endpoint have the
	// same one. Tables about endpoints are arrays by slot. Another endpoint gets it only after every EndpointObserver was
	// called.
	Slot int

	signals  Values         // of every LabelSignal
	inFlight *meter         // shared by all versions
	peer     *atomic.Uint32 // a Peer, and what plans may have for it; shared by all versions
	presumed EngineMode     // while no page was read
	traits   KVTraits       // that labels tell
}

// VariantLabel is the pod label that names the variant of a pod: of several Deployments of one model, the one that it is from. It is llm-d's.
const VariantLabel = "llm-d.ai/variant"

// VariantCostLabel is the label that says what a pod of its variant costs for an hour, in any unit. llm-d's autoscaler has an annotation of
// that name.
const VariantCostLabel = "llm-d.ai/variant-cost"

// Peer says what takes the requests at an endpoint's address.
type Peer uint32

// The peers.
const (
	PeerUnknown Peer = iota // no metrics page has been read at that address yet
	PeerTandem              // Tandem's sidecar, which takes the picker's headers
	PeerOther               // another sidecar, or an engine
)

// Spec is an endpoint as a file or a cluster describes it.
type Spec struct {
	Namespace, Name string // together unique; Namespace "" means default
	Addr            netip.AddrPort
	Metrics         string // host:port of the metrics page; "" = Addr
	Labels          map[string]string
	Pod             string     // its pod's name; "" = Name
	Node            netip.Addr // of its node; the zero Addr = not known
}

// NewEndpoint makes an endpoint with nothing in flight. metrics "" means that its own address serves the metrics page.
func NewEndpoint(namespace, name string, addr netip.AddrPort, metrics string, labels map[string]string) *Endpoint {
	addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	role, _ := pd.ParseRole(labels[pd.RoleLabel]) // an unknown value serves no stage
	e := &Endpoint{Name: name, Namespace: namespace, Addr: addr, Address: addr.String(), Metrics: metrics, Role: role,
		Labels: labels, signals: labelValues(labels), presumed: presumedMode(labels), traits: LabelTraits(labels), inFlight: new(meter), peer: new(atomic.Uint32)}
	if e.Metrics == "" {
		e.Metrics = e.Address
	}
	return e
}

// With makes a new version of an endpoint, with another metrics page and other labels. It is the same engine, so the versions
// share the slot and the load in flight.
func (e *Endpoint) With(metrics string, labels map[string]string) *Endpoint {
	next := NewEndpoint(e.Namespace, e.Name, e.Addr, metrics, labels)
	next.Slot, next.inFlight, next.peer, next.Pod, next.Node = e.Slot, e.inFlight, e.peer, e.Pod, e.Node
	return next
}

// Is reports whether both are versions of one endpoint.
func (e *Endpoint) Is(other *Endpoint) bool {
	return e == other || e != nil && other != nil && e.inFlight == other.inFlight
}

// The bits of Endpoint.peer that say which optional members plans may have.
const (
	takesRanks = 1 << (8 + iota)
	takesSource
)

// Peer returns what takes the requests at the endpoint's address, as far as is known.
func (e *Endpoint) Peer() Peer { return Peer(e.peer.Load() &^ (takesRanks | takesSource)) }

// TakesRanks reports whether it is known to read plans that name ranks.
func (e *Endpoint) TakesRanks() bool { return e.peer.Load()&takesRanks != 0 }

// TakesSource reports whether it is known to read plans that say what a source has (pd.Plan.SourceTokens).
func (e *Endpoint) TakesSource() bool { return e.peer.Load()&takesSource != 0 }

// SetPeer notes what takes the requests, and whether it reads plans that name ranks, or say what a source has. Only the pool may call it.
func (e *Endpoint) SetPeer(p Peer, ranks, source bool) {
	v := uint32(p)
	if ranks {
		v |= takesRanks
	}
	if source {
		v |= takesSource
	}
	e.peer.Store(v)
}

// String returns namespace/name.
func (e *Endpoint) String() string { return fmt.Sprintf("%s/%s", e.Namespace, e.Name) }

// Load is what an endpoint's metrics page reported when it was read last. What every pick reads comes first, in as few cache
// lines as possible.
type Load struct {
	At          time.Time // when the page was read; zero = never
	Unreachable bool      // the endpoint accepted no connection, or hung, when its page was last asked for; the other fields are of an earlier one
	Mode        EngineMode
	Sent        InFlight // load that was in flight when the page was requested
	Batch       float64  // requests that the engine is known to run at once: see LearnBatch
	Signals     Values   // of every PageSignal that the page had
	Cache       CacheInfo
	Engine      string // the engine that wrote the page, by the names of its families: vllm or sglang; "" = not known
	Connector   string // ConnectorNIXL if the page has metrics of it; "" = not known
	Ranks       *Ranks // of an engine with several data-parallel ranks that tells their loads apart; else nil
	LoRA        *LoRA  // nil: the page names no adapters
	// Attributes are the values of the extractor's customMetrics that are no signals; nil: the page had none of them.
	Attributes *Attributes
	// Further is what other pages say; nil: nothing is known of them.
	Further *Further
}

// Attributes are values of pages that are no signals. They do not change.
type Attributes []Attribute

// Attribute is one of them.
type Attribute struct {
	Producer string  `json:"producer,omitempty"` // "" = the extractor of metrics pages, in whose configuration Key is
	Key      string  `json:"key"`
	Value    float64 `json:"value"`
}

// Attribute returns the value of an attribute of a producer, "" for the extractor of metrics pages; ok is false if it is not known.
// What the extractor has found is as old as the load; the values of other producers are known as long as their pages can be read.
func (l *Load) Attribute(producer, key string) (value float64, ok bool) {
	var all Attributes
	switch {
	case producer != "" && l.Further != nil:
		all = l.Further.Attributes
	case producer == "" && l.Attributes != nil:
		all = *l.Attributes
	}
	for i := range all {
		if a := &all[i]; a.Key == key && a.Producer == producer {
			return a.Value, true
		}
	}
	return 0, false
}

// CacheInfo is the size of an engine's KV cache as its page reports it; zeros if it does not.
type CacheInfo struct {
	BlockTokens int  `json:"block_tokens"` // tokens in a block
	Blocks      int  `json:"blocks"`
	NoPrefixes  bool `json:"no_prefixes,omitempty"` // the engine keeps no beginnings of prompts for later requests
	// Type is that of its elements, as the page names it; "": it is the model's own, or the page does not tell it.
	Type string `json:"type,omitempty"`
}

// LoRA is what an engine reports about its adapters.
type LoRA struct {
	Max     int      `json:"max"` // adapters that can be loaded at once
	Running []string `json:"running"`
	Waiting []string `json:"waiting"`
}

// Trust returns how much a load of this age is worth: 1 up to stale, then falling evenly to 0 at three times that age, and 0
// if no page was read. Scorers mix a value with the middle in this proportion, so a silent engine looks average, neither idle
// nor full.
func (l *Load) Trust(now time.Time, stale time.Duration) float64 {
	if l.At.IsZero() {
		return 0
	}
	age := now.Sub(l.At)
	switch {
	case age <= stale:
		return 1
	case age >= 3*stale:
		return 0
	}
	return float64(3*stale-age) / float64(2*stale)
}

// Snapshot is the pool at one moment. It does not change.
type Snapshot struct {
	Version   uint64      // grows with every snapshot
	Endpoints []*Endpoint // ordered by namespace and name
	Loads     []Load      // of the endpoint at the same index
}
