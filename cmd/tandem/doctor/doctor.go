package doctor

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
)

// Summary is what the command does, for help pages.
const Summary = "inspect a P/D pool and report what does not fit together"

// settings are the flags.
type settings struct {
	Pool    poolFlags    `group:"Where the pool is: one of these, or a cluster"`
	Cluster clusterFlags `group:"Cluster"`
	Parts   partFlags    `group:"Parts that are not found from there"`
	Look    lookFlags    `group:"How to inspect"`
	Link    linkFlags    `group:"link"`
}

type poolFlags struct {
	Endpoints string `flag:"endpoints-file" arg:"FILE" help:"the picker's endpoints file"`
	Up        string `flag:"up" arg:"FILE" help:"output of a running tandem up (its stdout); - reads stdin"`
}

type clusterFlags struct {
	Namespace  string `flag:"namespace" arg:"NAME" help:"namespace of the pool"`
	Release    string `flag:"release" arg:"NAME" help:"Helm release, if the namespace has several"`
	Selector   string `flag:"selector" arg:"LABELS" help:"label selector of the engines' pods, instead of a release"`
	Kubeconfig string `flag:"kubeconfig" arg:"FILE" help:"default: KUBECONFIG, the usual file, or the pod's own service account"`
	Via        string `flag:"via" enum:"auto,direct,apiserver" help:"how pods are reached: auto uses the API server's proxy, which passes only HTTP, unless the doctor runs inside the cluster"`
}

type partFlags struct {
	ExtProc  string   `flag:"epp" arg:"HOST:PORT" help:"ext-proc port of the picker"`
	Health   string   `flag:"epp-health" arg:"HOST:PORT" help:"gRPC health port of the picker"`
	Metrics  string   `flag:"epp-metrics" arg:"HOST:PORT" help:"metrics port of the picker"`
	Admin    string   `flag:"epp-admin" arg:"HOST:PORT" help:"admin port of the picker; if no other flag names the pool, its endpoints are the pool"`
	Proxy    string   `flag:"proxy" arg:"[https://]HOST:PORT" help:"address that clients connect to"`
	Side     []string `flag:"side-channel" arg:"HOST:PORT[,…]" help:"side channels of the prefill engines. Default: from the pods, else port 5600 of each"`
	Sidecars []string `flag:"sidecar-metrics" arg:"HOST:PORT[,…]" help:"metrics ports of the sidecars. Default: from the pods"`
}

type lookFlags struct {
	Timeout  time.Duration `flag:"timeout" help:"longest time for one request"`
	IdleWait time.Duration `flag:"idle-wait" help:"how long connections stay idle in the keep-alive check; 0: no such check"`
	Probe    bool          `flag:"probe" help:"send one short request for each pair of engines, prefilled remotely"`
	Sidecar  string        `flag:"sidecar" enum:"tandem,any" help:"which sidecar decode engines must have: tandem, or any (another sidecar cannot be detected)"`
	CAFile   string        `flag:"ca-file" arg:"FILE" help:"PEM file of the authorities that must have signed the certificates of the picker and the proxy. Default: only dates are verified"`
	CertDir  string        `flag:"client-cert-path" arg:"DIR" help:"directory with tls.crt and tls.key, the certificate to show to the picker, endpoints and the proxy. Default: none"`
	KeyFile  string        `flag:"api-key-file" arg:"FILE" help:"file with the API key of the engines"`
	JSON     bool          `flag:"json" help:"print the findings as JSON"`
}

func defaults() settings {
	return settings{Cluster: clusterFlags{Via: viaAuto}, Look: lookFlags{Timeout: 5 * time.Second, IdleWait: 6 * time.Second, Sidecar: "tandem"},
		Link: linkFlags{Tokens: []int{512, 4096}, Rounds: 3, Pairs: 8}}
}

// The ways to reach pods.
const (
	viaAuto      = "auto"
	viaDirect    = "direct"
	viaAPIServer = "apiserver"
)

// Validate implements boot.Validator.
func (s *settings) Validate(p *boot.Problems) {
	sources := 0
	for _, given := range []bool{s.Pool.Endpoints != "", s.Pool.Up != "", s.Cluster.Namespace != ""} {
		if given {
			sources++
		}
	}
	p.Require(sources <= 1, "endpoints-file", "give only one of --endpoints-file, --up and --namespace")
	p.Require(sources == 1 || s.Parts.Admin != "", "endpoints-file",
		"where is the pool? Name --endpoints-file, --up, --namespace, or the picker's admin port (--epp-admin)")
	s.Cluster.validate(p)
	s.Link.validate(p)
	for flag, address := range map[string]string{"epp": s.Parts.ExtProc, "epp-health": s.Parts.Health, "epp-metrics": s.Parts.Metrics,
		"epp-admin": s.Parts.Admin, "proxy": hostPort(s.Parts.Proxy)} {
		if address != "" {
			p.RequireAddress(flag, address)
		}
	}
	for flag, addresses := range map[string][]string{"side-channel": s.Parts.Side, "sidecar-metrics": s.Parts.Sidecars} {
		for _, address := range addresses {
			p.RequireAddress(flag, address)
		}
	}
	p.Require(s.Look.Timeout > 0, "timeout", "must be positive")
	p.Require(s.Look.IdleWait >= 0 && s.Look.IdleWait <= time.Minute, "idle-wait", "want 0 to 1m")
	_, err := s.Look.roots()
	p.Require(err == nil, "ca-file", "%w", err)
	_, err = s.Look.shown()
	p.Require(err == nil, "client-cert-path", "%w", err)
	_, err = s.Look.key()
	p.Require(err == nil, "api-key-file", "%w", err)
}

func (c *clusterFlags) validate(p *boot.Problems) {
	inCluster := c.Namespace != ""
	p.Require(inCluster || c.Release == "", "release", "needs --namespace")
	p.Require(inCluster || c.Selector == "", "selector", "needs --namespace")
	p.Require(c.Release == "" || c.Selector == "", "selector", "cannot be combined with --release")
	_, err := labels.Parse(c.Selector)
	p.Require(err == nil, "selector", "%w", err)
}

// hostPort returns an address without its scheme.
func hostPort(address string) string {
	address = strings.TrimPrefix(strings.TrimPrefix(address, "https://"), "http://")
	return strings.TrimSuffix(address, "/")
}

// key returns the API key, or "" for none.
func (l *lookFlags) key() (string, error) {
	if l.KeyFile == "" {
		return "", nil
	}
	b, err := os.ReadFile(l.KeyFile)
	return strings.TrimSpace(string(b)), err
}

var program = boot.Program{
	Summary:  "doctor: " + Summary + ". With link, it measures what carries KV caches, and how fast, by requests to each pair of engines.",
	Operands: "[link]",
}

// Run runs the command. If a check fails, the error is an Exit with CodeFailed and no text.
func Run(ctx context.Context, std boot.IO, args []string) error {
	s := defaults()
	operands, err := program.Load(std, &s, args)
	if err != nil {
		return err
	}
	if len(operands) > 1 || len(operands) == 1 && operands[0] != "link" {
		return boot.Usagef("doctor has no %q: without an operand it inspects the pool, and link measures its network", strings.Join(operands, " "))
	}
	f, err := s.find(ctx, std)
	if err != nil {
		return err
	}
	defer f.close()
	p := newProgress(std.Stderr)
	fmt.Fprintf(std.Stderr, "reading %d endpoints\n", len(f.targets))
	f.look(ctx)
	if len(operands) == 1 {
		return s.measureLinks(ctx, std, f)
	}
	found := f.examine(ctx, p)
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("inspecting the pool: %w", err)
	}
	if err := found.write(std.Stdout, s.Look.JSON, colours(std)); err != nil {
		return err
	}
	if found.verdict() == fail {
		return boot.Exit{Code: boot.CodeFailed}
	}
	return nil
}

// measureLinks runs tandem doctor link.
func (s *settings) measureLinks(ctx context.Context, std boot.IO, f *fleet) error {
	all := f.links(ctx, &s.Link, func(pair string) { fmt.Fprintln(std.Stderr, "measuring", pair) })
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("measuring links: %w", err)
	}
	if len(all) == 0 {
		return boot.Missingf("no prefill engine answers, or no decode engine: tandem doctor says more")
	}
	if err := writeLinks(std.Stdout, all, s.Look.JSON, colours(std)); err != nil {
		return err
	}
	if linkVerdict(all) == fail {
		return boot.Exit{Code: boot.CodeFailed}
	}
	return nil
}

// find finds the pods and parts of the pool.
func (s *settings) find(ctx context.Context, std boot.IO) (*fleet, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Look.Timeout)
	defer cancel()
	f, err := newFleet(s)
	if err != nil {
		return nil, err
	}
	switch {
	case s.Pool.Endpoints != "":
		err = f.fromFile(s.Pool.Endpoints)
	case s.Cluster.Namespace != "":
		err = f.fromCluster(ctx, &s.Cluster)
	default:
		if s.Pool.Up != "" {
			err = f.parts.readUp(std, s.Pool.Up)
		}
		if err == nil {
			err = f.fromPicker(ctx)
		}
	}
	if err != nil {
		f.close()
		return nil, err
	}
	f.addPicker()
	f.addSidecars()
	return f, nil
}

// loopback reports whether an address belongs to this machine's loopback.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	return host == "localhost" || net.ParseIP(cmp.Or(host, "::")).IsLoopback()
}
