package extproc

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"text/template"

	"github.com/tandem-serving/tandem/epp"
)

// Names in the bootstrap, by which tests and operators find things in Envoy's statistics.
const (
	// ListenerName is the listener that clients talk to, and the prefix of its statistics.
	ListenerName = "tandem"
	// PoolCluster is the cluster of the decode endpoints, and the name under which Envoy asks for them.
	PoolCluster = "pool"
	// PickerCluster is the cluster of the EPP's replicas.
	PickerCluster = "epp"
)

// Filters is the layout of the ext-proc filters.
type Filters string

// The layouts.
const (
	// FiltersPair lets an EPP die during an answer without harm to it.
	FiltersPair Filters = "pair"
	// FiltersSingle is one filter, as gateways of others have it.
	FiltersSingle Filters = "single"
)

// PoolSource is where Envoy knows the decode endpoints from.
type PoolSource string

// The sources.
const (
	// PoolEDS follows the EPP's own view of the pool, with retries onto the next endpoint.
	PoolEDS PoolSource = "eds"
	// PoolStatic is a list in the bootstrap: for EPPs that serve no EDS, and pools that never change.
	PoolStatic PoolSource = "static"
	// PoolOriginalDst dials what the EPP says. It takes no list: the EPP has to give one endpoint, and a retry goes to the
	// same again.
	PoolOriginalDst PoolSource = "original-dst"
)

// BootstrapOptions say what Envoy's bootstrap shall do.
type BootstrapOptions struct {
	Listen  string   // ip:port for clients, plaintext
	Admin   string   // ip:port of Envoy's own pages
	Pickers []string // host:port of the EPP's replicas, all by IP address or all by name
	Filters Filters
	Pool    PoolSource
	Static  []netip.AddrPort // the decode endpoints of PoolStatic

	Plaintext bool   // no TLS to the EPP
	CAFile    string // certificates, PEM, that the EPP's must be signed by; "" = any will do, since EPPs sign their own

	BodyLimit int64  // largest request body that can be retried, in bytes: the EPP's limit
	AccessLog bool   // one line of JSON for each request, on stdout
	Collector string // host:port of an OTLP/gRPC collector of spans; "" = no spans
}

// DefaultBootstrap is what a user gets who says nothing.
func DefaultBootstrap() BootstrapOptions {
	return BootstrapOptions{
		Listen: "0.0.0.0:8080", Admin: "127.0.0.1:9901", Pickers: []string{"127.0.0.1:9002"},
		Filters: FiltersPair, Pool: PoolEDS, BodyLimit: 64 << 20,
	}
}

// Problems reports what is wrong with the options, under the names of the flags of tandem envoy-config.
func (o *BootstrapOptions) Problems(report func(flag, format string, args ...any)) {
	if _, err := netip.ParseAddrPort(o.Listen); err != nil {
		report("listen", "%q is not IP:PORT", o.Listen)
	}
	if _, err := netip.ParseAddrPort(o.Admin); err != nil {
		report("admin-address", "%q is not IP:PORT", o.Admin)
	}
	if o.Filters != FiltersPair && o.Filters != FiltersSingle {
		report("mode", "%q is not one of %s, %s", o.Filters, FiltersPair, FiltersSingle)
	}
	if o.Plaintext && o.CAFile != "" {
		report("epp-ca", "without TLS there is no certificate to verify")
	}
	if o.BodyLimit <= 0 {
		report("body-limit", "%d is not a positive size", o.BodyLimit)
	}
	o.poolProblems(report)
	o.peerProblems(report)
}

func (o *BootstrapOptions) poolProblems(report func(flag, format string, args ...any)) {
	switch {
	case o.Pool != PoolEDS && o.Pool != PoolStatic && o.Pool != PoolOriginalDst:
		report("pool", "%q is not one of %s, %s, %s", o.Pool, PoolEDS, PoolStatic, PoolOriginalDst)
	case o.Pool == PoolStatic && len(o.Static) == 0:
		report("endpoint", "a static pool needs its decode endpoints")
	case o.Pool != PoolStatic && len(o.Static) > 0:
		report("endpoint", "only a static pool (--pool static) lists its endpoints")
	}
}

func (o *BootstrapOptions) peerProblems(report func(flag, format string, args ...any)) {
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

//go:embed bootstrap.yaml.tmpl
var bootstrapText string

var bootstrapTemplate = template.Must(template.New("bootstrap").Funcs(template.FuncMap{"quote": quote}).Parse(bootstrapText))

// quote makes a YAML scalar of any text: the strings of JSON are among YAML's.
func quote(v any) (string, error) {
	b, err := json.Marshal(v)
	return string(b), err
}

// bootstrapPage is what the template sees.
type bootstrapPage struct {
	BootstrapOptions
	Listener, PoolName, PickerName string
	ListenOn, AdminPage            peer
	Peers                          []peer
	Named                          bool // the replicas have to be resolved
	Traces                         *peer
	ExtProc                        []filterPage
	Internal                       []string // matchers of the headers that clients must not send
	Destination, Served            string
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

// internalHeaders matches the families of pd.Internal but for the client's own wish. Envoy's expressions match whole names
// and cannot say "but not", so the last one spells out all names that are not x-tandem-pd.
var internalHeaders = []string{
	"prefix: x-prefiller-",
	"prefix: x-encoder-",
	"prefix: x-kv-cache-",
	"prefix: x-data-parallel-",
	"prefix: x-gateway-destination-",
	`safe_regex: { regex: "x-tandem-([^p].*|p|p[^d].*|pd.+)?" }`,
}

// Bootstrap writes a complete bootstrap of Envoy, with comments for the person who keeps it. The error tells the first
// problem of the options, or is w's.
func Bootstrap(w io.Writer, o BootstrapOptions) error {
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

// page fills the template's page from options without problems.
func (o BootstrapOptions) page() bootstrapPage {
	p := bootstrapPage{
		BootstrapOptions: o, Listener: ListenerName, PoolName: PoolCluster, PickerName: PickerCluster,
		ExtProc: filterPages[o.Filters], Internal: internalHeaders, Destination: epp.HeaderDestination, Served: epp.HeaderServed,
	}
	p.ListenOn, _ = parsePeer(o.Listen)
	p.AdminPage, _ = parsePeer(o.Admin)
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
