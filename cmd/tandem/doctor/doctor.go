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
const Summary = "look at a P/D pool and say what does not fit together"

// settings are the flags.
type settings struct {
	Pool    poolFlags    `group:"Where the pool is: one of these, or a cluster"`
	Cluster clusterFlags `group:"Cluster"`
	Parts   partFlags    `group:"Parts that cannot be found from there"`
	Look    lookFlags    `group:"How to look"`
}

type poolFlags struct {
	Endpoints string `flag:"endpoints-file" arg:"FILE" help:"the picker's endpoints file"`
	Up        string `flag:"up" arg:"FILE" help:"what a running tandem up has printed on stdout; - reads it from stdin"`
}

type clusterFlags struct {
	Namespace  string `flag:"namespace" arg:"NAME" help:"namespace of the pool"`
	Release    string `flag:"release" arg:"NAME" help:"Helm release, if there are several in the namespace"`
	Selector   string `flag:"selector" arg:"LABELS" help:"label selector of the engines' pods, instead of a release"`
	Kubeconfig string `flag:"kubeconfig" arg:"FILE" help:"default: KUBECONFIG, the usual file, or the pod's own service account"`
	Via        string `flag:"via" enum:"auto,direct,apiserver" help:"how pods are reached: auto takes the API server's proxy outside of the cluster, which does HTTP only"`
}

type partFlags struct {
	ExtProc  string   `flag:"epp" arg:"HOST:PORT" help:"ext-proc port of the picker"`
	Health   string   `flag:"epp-health" arg:"HOST:PORT" help:"gRPC health port of the picker"`
	Metrics  string   `flag:"epp-metrics" arg:"HOST:PORT" help:"metrics port of the picker"`
	Admin    string   `flag:"epp-admin" arg:"HOST:PORT" help:"admin port of the picker; without another pool, its endpoints are the pool"`
	Proxy    string   `flag:"proxy" arg:"[https://]HOST:PORT" help:"where clients connect to"`
	Side     []string `flag:"side-channel" arg:"HOST:PORT[,…]" help:"side channels of the prefill engines. Default: what pods say, else port 5600 of each"`
	Sidecars []string `flag:"sidecar-metrics" arg:"HOST:PORT[,…]" help:"metrics ports of the sidecars. Default: what pods say"`
}

type lookFlags struct {
	Timeout  time.Duration `flag:"timeout" help:"longest time for one look"`
	IdleWait time.Duration `flag:"idle-wait" help:"how long connections are left idle to see whether they are closed; 0: not at all"`
	Probe    bool          `flag:"probe" help:"send one short request for each pair of engines, prefilled remotely"`
	Sidecar  string        `flag:"sidecar" enum:"tandem,any" help:"whose sidecar has to be before decode engines; that of others cannot be seen"`
	CAFile   string        `flag:"ca-file" arg:"FILE" help:"certificates, PEM, that those of the picker and the proxy must be signed by. Default: nothing is verified but their dates"`
	KeyFile  string        `flag:"api-key-file" arg:"FILE" help:"file with the API key of the engines"`
	JSON     bool          `flag:"json" help:"print the findings as JSON"`
}

func defaults() settings {
	return settings{Cluster: clusterFlags{Via: viaAuto}, Look: lookFlags{Timeout: 5 * time.Second, IdleWait: 6 * time.Second, Sidecar: "tandem"}}
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
	p.Require(sources <= 1, "endpoints-file", "one of --endpoints-file, --up and --namespace is enough")
	p.Require(sources == 1 || s.Parts.Admin != "", "endpoints-file",
		"where is the pool? Name --endpoints-file, --up, --namespace, or the picker's admin port (--epp-admin)")
	s.Cluster.validate(p)
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
	_, err = s.Look.key()
	p.Require(err == nil, "api-key-file", "%w", err)
}

func (c *clusterFlags) validate(p *boot.Problems) {
	inCluster := c.Namespace != ""
	p.Require(inCluster || c.Release == "", "release", "needs --namespace")
	p.Require(inCluster || c.Selector == "", "selector", "needs --namespace")
	p.Require(c.Release == "" || c.Selector == "", "selector", "cannot be given beside --release")
	_, err := labels.Parse(c.Selector)
	p.Require(err == nil, "selector", "%w", err)
}

// hostPort is an address without its scheme.
func hostPort(address string) string {
	address = strings.TrimPrefix(strings.TrimPrefix(address, "https://"), "http://")
	return strings.TrimSuffix(address, "/")
}

// key is the API key, "" for none.
func (l *lookFlags) key() (string, error) {
	if l.KeyFile == "" {
		return "", nil
	}
	b, err := os.ReadFile(l.KeyFile)
	return strings.TrimSpace(string(b)), err
}

// Run is the command. The error is an Exit with CodeFailed, and nothing to say, if a check has failed.
func Run(ctx context.Context, std boot.IO, args []string) error {
	s := defaults()
	if _, err := (boot.Program{Summary: "doctor: " + Summary + "."}).Load(std, &s, args); err != nil {
		return err
	}
	f, err := s.find(ctx, std)
	if err != nil {
		return err
	}
	defer f.close()
	f.look(ctx)
	found := f.examine(ctx)
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("looking at the pool: %w", err)
	}
	if err := found.write(std.Stdout, s.Look.JSON, colours(std)); err != nil {
		return err
	}
	if found.verdict() == fail {
		return boot.Exit{Code: boot.CodeFailed}
	}
	return nil
}

// find says which pods and parts there are.
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

// loopback tells whether an address is this machine's own.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	return host == "localhost" || net.ParseIP(cmp.Or(host, "::")).IsLoopback()
}
