package envoyconf

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// Names in the bootstrap. Envoy's statistics carry them.
const (
	// ListenerName is the listener that clients talk to, and the prefix of its statistics.
	ListenerName = "tandem"
	// PoolCluster is the cluster of the decode endpoints, and the name under which Envoy asks for them.
	PoolCluster = "pool"
	// PickerCluster is the cluster of the EPP's replicas.
	PickerCluster = "epp"
	// LargeListener is the listener within Envoy through which requests with a large body pass, and the name of its cluster.
	LargeListener = "large"
	// OpenListener is the listener within Envoy for requests for which no EPP answers, if Envoy fails open.
	OpenListener = "open"
	// OperationsListener is the listener of probes and Prometheus.
	OperationsListener = "operations"
	// CanaryCluster is the cluster of the canary's Envoy.
	CanaryCluster = "canary"
)

// largeBody is the size (bytes) from which a body goes through the large listener. Envoy keeps up to 64 KiB of an ext-proc stream
// to send it to another picker: a smaller body fits there, together with the request's headers and metadata.
const largeBody = 32<<10 + 1

// headerPickLost marks the answer of the large listener to a request whose picker died. The first listener then retries it.
const headerPickLost = "x-tandem-pick-lost"

// DefaultIdle is how long Envoy keeps an idle connection to a pod open. The server in the pod must wait longer before it closes
// the connection, or a request is sometimes sent on a connection that is being closed. Our sidecar waits for 5 minutes.
const DefaultIdle = 4 * time.Minute

// leastHeap is the smallest limit of Envoy's heap that leaves memory for requests (bytes).
const leastHeap = 64 << 20

// Filters is the layout of the ext-proc filters.
type Filters string

// The layouts.
const (
	// FiltersPair lets an EPP die during an answer without harm to it. It refuses requests that have trailers after more than
	// 62,000 bytes of body, because Envoy 1.40 sends parts of them twice.
	FiltersPair Filters = "pair"
	// FiltersSingle is one filter, as the gateways of other vendors have it. Envoy 1.40 then sends the body of a request that
	// has trailers twice (envoyproxy/envoy#45470): its router keeps the body for retries, and gets it again when the filter lets
	// the trailers pass. The picker cannot tell such a route from one without retries, which works. Engines refuse such a
	// body, and clients of these APIs send no trailers.
	FiltersSingle Filters = "single"
)

// PoolSource is where Envoy gets the decode endpoints from.
type PoolSource string

// The sources.
const (
	// PoolEDS follows the EPP's own view of the pool, with retries onto the next endpoint.
	PoolEDS PoolSource = "eds"
	// PoolStatic is a list in the bootstrap, for EPPs that serve no EDS and pools that never change.
	PoolStatic PoolSource = "static"
	// PoolOriginalDst connects to the address that the EPP gives. It takes no list: the EPP must give one endpoint, and a
	// retry goes to the same endpoint again.
	PoolOriginalDst PoolSource = "original-dst"
)

// Options are the settings of Envoy's bootstrap.
type Options struct {
	Listen     string   // ip:port for clients
	Admin      string   // ip:port of Envoy's own pages
	Operations string   // ip:port of /livez, /readyz and /metrics, for probes and Prometheus; "" = none
	Pickers    []string // host:port of the EPP's replicas, all by IP address or all by name
	Filters    Filters
	Pool       PoolSource
	Static     []netip.AddrPort // the decode endpoints of PoolStatic

	Cert      OwnCert // shown to clients
	ClientCA  string  // PEM; clients must show a certificate that one of these has signed. "" = they need none
	Client    OwnCert // shown to the EPP and the decode endpoints, if they ask
	PickerTLS PeerTLS // to the EPP
	PoolTLS   PeerTLS // to the decode endpoints
	PoolHTTP2 bool    // HTTP/2 to the decode endpoints, as appProtocol kubernetes.io/h2c of an InferencePool asks for
	// FailOpen has Envoy choose a decode endpoint itself while no EPP answers, as failureMode FailOpen of an InferencePool does:
	// requests are served without prefill on another pod. Otherwise they get 503. Then all requests with a body pass the large
	// listener.
	FailOpen bool

	HTTPFilters string // YAML: a list of HTTP filters of Envoy that requests pass before the EPP is asked; "" = none

	Canary Canary // another installation, which takes a share of the requests

	Idle       time.Duration // how long an idle connection to a decode endpoint is kept open, to the second
	BodyLimit  int64         // largest request body that can be retried, in bytes: the EPP's limit
	MaxHeap    int64         // memory of Envoy's heap, in bytes, near which it takes no more requests; 0 = no limit
	AccessLog  bool          // one line of JSON for each request, on stdout
	Collector  string        // host:port of an OTLP/gRPC collector of spans; "" = no spans
	TraceRatio float64       // part of the traces that begin here which are kept, 0 to 1
}

// Canary is another installation behind the same address: requests that are drawn for it go to its Envoy, whatever becomes of
// them there. The zero value is none.
type Canary struct {
	Address string  // host:port of its listener for clients; "" = none
	Percent float64 // of the requests, 0 to 100, to a hundredth
	TLS     bool    // its listener speaks TLS; any certificate is accepted, since it names what clients call
}

// OwnCert is a certificate of Envoy's. The zero value is none: clients are served in plaintext, peers are shown no certificate.
type OwnCert struct {
	Dir  string // directory with tls.crt and tls.key
	File string // file that Certificate wrote for Dir: Envoy takes a renewed certificate at once; "" = it keeps the first one
}

// PeerTLS is how a connection to a peer is secured. The zero value is TLS that accepts any certificate.
type PeerTLS struct {
	Plaintext bool
	CAFile    string // PEM; the peer's certificate must be signed by one of these. "" = accept any: EPPs and sidecars sign their own
	Name      string // DNS name for SNI, which the peer's certificate must have; "" = accept any
}

// Defaults returns the default options.
func Defaults() Options {
	return Options{
		Listen: "0.0.0.0:8080", Admin: "127.0.0.1:9901", Pickers: []string{"127.0.0.1:9002"},
		Filters: FiltersPair, Pool: PoolEDS, PoolTLS: PeerTLS{Plaintext: true}, Idle: DefaultIdle, BodyLimit: 64 << 20,
		TraceRatio: 1,
	}
}

// Problems reports what is wrong with the options, under the names of the flags of tandem envoy-config.
func (o *Options) Problems(report func(flag, format string, args ...any)) {
	o.listenProblems(report)
	if o.Filters != FiltersPair && o.Filters != FiltersSingle {
		report("mode", "%q is not one of %s, %s", o.Filters, FiltersPair, FiltersSingle)
	}
	if !(o.TraceRatio >= 0 && o.TraceRatio <= 1) {
		report("trace-ratio", "%v is not from 0 to 1", o.TraceRatio)
	}
	if o.Idle < time.Second { // Envoy takes 0 for never
		report("idle-timeout", "must be 1s or more, got %v", o.Idle)
	}
	if o.BodyLimit <= 0 {
		report("body-limit", "%d is not a positive size", o.BodyLimit)
	}
	if o.MaxHeap != 0 && o.MaxHeap < leastHeap {
		report("max-heap", "must be %d MiB or more, of which Envoy needs some 20 itself, or 0 for no limit; got %d bytes", leastHeap>>20, o.MaxHeap)
	}
	o.poolProblems(report)
	o.peerProblems(report)
	if _, err := operatorFilters(o.HTTPFilters); err != nil {
		report("http-filters", "%w", err)
	}
	o.Canary.problems(report)
	o.PickerTLS.problems("epp", report)
	o.PoolTLS.problems("pool", report)
}

func (o *Options) listenProblems(report func(flag, format string, args ...any)) {
	if _, err := netip.ParseAddrPort(o.Listen); err != nil {
		report("listen", "%q is not IP:PORT", o.Listen)
	}
	admin, err := netip.ParseAddrPort(o.Admin)
	if err != nil {
		report("admin-address", "%q is not IP:PORT", o.Admin)
	}
	if o.Operations != "" {
		if _, err := netip.ParseAddrPort(o.Operations); err != nil {
			report("operations-address", "%q is not IP:PORT", o.Operations)
		}
		if admin.Port() == 0 { // the operations listener forwards to it
			report("admin-address", "must have a port of its own with operations-address, got %q", o.Admin)
		}
	}
	if o.Cert.File != "" && o.Cert.Dir == "" {
		report("cert-file", "names the certificate of cert-path, which is missing")
	}
	if o.ClientCA != "" && o.Cert.Dir == "" {
		report("client-ca", "without cert-path there is no TLS in which clients could show a certificate")
	}
	if o.Client.File != "" && o.Client.Dir == "" {
		report("client-cert-file", "names the certificate of client-cert-path, which is missing")
	}
	if o.Client.Dir != "" && o.PickerTLS.Plaintext && o.PoolTLS.Plaintext {
		report("client-cert-path", "no peer asks for it without TLS to the EPP or to the endpoints")
	}
}

func (o *Options) poolProblems(report func(flag, format string, args ...any)) {
	switch {
	case o.Pool != PoolEDS && o.Pool != PoolStatic && o.Pool != PoolOriginalDst:
		report("pool", "%q is not one of %s, %s, %s", o.Pool, PoolEDS, PoolStatic, PoolOriginalDst)
	case o.Pool == PoolStatic && len(o.Static) == 0:
		report("endpoint", "a static pool needs its decode endpoints")
	case o.Pool != PoolStatic && len(o.Static) > 0:
		report("endpoint", "only a static pool (--pool static) lists its endpoints")
	case o.Pool == PoolOriginalDst && o.FailOpen:
		report("fail-open", "with --pool original-dst Envoy knows no endpoint but the one that the EPP names")
	}
}

func (o *Options) peerProblems(report func(flag, format string, args ...any)) {
	if len(o.Pickers) == 0 {
		report("epp", "there must be an EPP to ask")
	}
	named := 0
	for _, address := range o.Pickers {
		p, err := parsePeer(address)
		if err != nil {
			report("epp", "%w", err)
			return
		}
		if p.named() {
			named++
		}
	}
	if named > 0 && named < len(o.Pickers) {
		report("epp", "give all replicas by IP address, or all by name")
	}
	if _, err := parsePeer(o.Collector); err != nil && o.Collector != "" {
		report("otlp", "%w", err)
	}
}

func (c Canary) problems(report func(flag, format string, args ...any)) {
	if !(c.Percent >= 0 && c.Percent <= 100) {
		report("canary-percent", "%v is not from 0 to 100", c.Percent)
	}
	if c.Address == "" {
		if c.Percent != 0 {
			report("canary", "there must be an address for %v %% of the requests", c.Percent)
		}
		return
	}
	if _, err := parsePeer(c.Address); err != nil {
		report("canary", "%w", err)
	}
}

// problems reports problems under the names of the peer's flags.
func (t PeerTLS) problems(peer string, report func(flag, format string, args ...any)) {
	switch {
	case t.Plaintext && (t.CAFile != "" || t.Name != ""):
		report(peer+"-ca", "without TLS there is no certificate to verify")
	case t.Name != "" && t.CAFile == "":
		report(peer+"-server-name", "any certificate may claim a name: it needs %s-ca", peer)
	}
}

// peer is an address that Envoy listens on or connects to.
type peer struct {
	Host string
	Port uint16
}

func parsePeer(address string) (peer, error) {
	host, port, err := net.SplitHostPort(address)
	n, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || portErr != nil || host == "" || strings.ContainsAny(host, " \t\r\n/") {
		return peer{}, fmt.Errorf("%q is not HOST:PORT", address)
	}
	return peer{host, uint16(n)}, nil
}

func (p peer) named() bool {
	_, err := netip.ParseAddr(p.Host)
	return err != nil
}

// The chart has copies of both templates.
var (
	//go:embed bootstrap.yaml.tmpl
	bootstrapText string
	//go:embed certificate.yaml.tmpl
	certificateText string

	bootstrapTemplate   = parse("bootstrap", bootstrapText)
	certificateTemplate = parse("certificate", certificateText)
)

func parse(name, text string) *template.Template {
	return template.Must(template.New(name).Funcs(template.FuncMap{"quote": quote, "indent": indent}).Parse(text))
}

// quote returns text as a YAML scalar. Every JSON string is one.
func quote(v any) (string, error) {
	b, err := json.Marshal(v)
	return string(b), err
}

// indent puts spaces before every line. Helm has the same function.
func indent(spaces int, text string) string {
	before := strings.Repeat(" ", spaces)
	return before + strings.ReplaceAll(text, "\n", "\n"+before)
}

// bootstrapPage is the data of the template. The Helm chart fills the same template from its values, so
// charts/tandem/templates/_proxy.tpl has the same names.
type bootstrapPage struct {
	Options
	Listener, PoolName, PickerName string
	LargeName, OpenName, PickLost  string
	LargeFrom                      int // bodies of this many bytes or more go to the large listener
	ListenOn, AdminPage            peer
	OperationsPage                 *peer
	IdleSeconds                    int64
	SampledPercent                 float64
	Peers                          []peer
	Named                          bool // the replicas are given by DNS name
	Traces                         *peer
	ExtProc                        []filterPage
	Internal                       []string // matchers of the headers that clients may not send
	Destination, Served            string
	CanaryName                     string
	Other                          *canaryPage
}

// canaryPage is another installation that takes a share of the requests.
type canaryPage struct {
	peer
	Parts int // of 10,000 requests
	TLS   bool
}

// filterPage is one ext-proc filter.
type filterPage struct {
	Mark            string
	Picks, Accounts bool // sees the whole request and picks; follows the answer to its end
}

var filterPages = map[Filters][]filterPage{
	FiltersPair:   {{Mark: "picker", Picks: true}, {Mark: "acct", Accounts: true}},
	FiltersSingle: {{Picks: true, Accounts: true}},
}

// internalHeaders matches the headers of pd.Internal except the client's P/D mode. Envoy's expressions match whole names and
// have no negation, so the last one spells out all names other than x-tandem-pd. The headers that choose another model are
// removed too: only a gateway that authenticates clients may let them through.
var internalHeaders = []string{
	"prefix: x-prefiller-",
	"prefix: x-encoder-",
	"prefix: x-kv-cache-",
	"prefix: x-data-parallel-",
	"prefix: x-gateway-destination-",
	"prefix: x-llm-d-prefiller-",
	"prefix: x-llm-d-encoder-",
	"prefix: x-llm-d-kv-cache-",
	"exact: " + epp.HeaderTarget,
	"exact: " + epp.HeaderTargetOld,
	`safe_regex: { regex: "x-tandem-([^p].*|p|p[^d].*|pd.+)?" }`,
}

// Bootstrap writes a complete bootstrap of Envoy, with comments for the person who maintains it. The error is the first problem
// of the options, or w's.
func Bootstrap(w io.Writer, o Options) error {
	var problem error
	o.Problems(func(flag, format string, args ...any) {
		if problem == nil {
			problem = fmt.Errorf("writing Envoy's bootstrap: %s: %w", flag, fmt.Errorf(format, args...))
		}
	})
	if problem != nil {
		return problem
	}
	if err := bootstrapTemplate.Execute(w, o.page()); err != nil {
		return fmt.Errorf("writing Envoy's bootstrap: %w", err)
	}
	return nil
}

// Certificate writes the file that OwnCert.File names. It tells Envoy where the certificate is, and to read it again when the
// directory changes. dir contains tls.crt and tls.key, as a mounted Kubernetes secret does.
func Certificate(w io.Writer, dir string) error {
	if err := certificateTemplate.Execute(w, OwnCert{Dir: dir}); err != nil {
		return fmt.Errorf("writing Envoy's certificate resource: %w", err)
	}
	return nil
}

// page returns the template's data. The options must have no problems.
func (o Options) page() bootstrapPage {
	p := bootstrapPage{
		Options: o, Listener: ListenerName, PoolName: PoolCluster, PickerName: PickerCluster,
		LargeName: LargeListener, OpenName: OpenListener, PickLost: headerPickLost, LargeFrom: largeBody,
		ExtProc: filterPages[o.Filters], Internal: internalHeaders, Destination: epp.HeaderDestination, Served: epp.HeaderServed,
	}
	if o.FailOpen {
		p.LargeFrom = 1 // whatever is small: what a filter has begun to send to a picker cannot be sent elsewhere
	}
	p.HTTPFilters, _ = operatorFilters(o.HTTPFilters)
	p.ListenOn, _ = parsePeer(o.Listen)
	p.AdminPage, _ = parsePeer(o.Admin)
	if o.Operations != "" {
		operations, _ := parsePeer(o.Operations)
		p.OperationsPage = &operations
	}
	p.CanaryName = CanaryCluster
	if o.Canary.Address != "" {
		address, _ := parsePeer(o.Canary.Address)
		p.Other = &canaryPage{peer: address, Parts: int(math.Round(100 * o.Canary.Percent)), TLS: o.Canary.TLS}
	}
	p.SampledPercent = math.Round(1e4*o.TraceRatio) / 100
	p.IdleSeconds = int64(o.Idle.Seconds())
	for _, address := range o.Pickers {
		picker, _ := parsePeer(address)
		p.Peers = append(p.Peers, picker)
		p.Named = picker.named()
	}
	if o.Collector != "" {
		collector, _ := parsePeer(o.Collector)
		p.Traces = &collector
	}
	return p
}
