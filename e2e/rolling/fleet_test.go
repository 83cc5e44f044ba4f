package rolling

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/epp/extproc/envoyconf"
	"github.com/tandem-serving/tandem/stack"
	"github.com/tandem-serving/tandem/stack/envoy"
)

// rollingFleet is a stack of which every part is there twice, with what a cluster puts around it: a name that resolves to
// the pickers, and a service before the proxies.
type rollingFleet struct {
	*harness.Fleet
	engines map[string]harness.Program // prefill-0, decode-0, …; those of the decode pods are behind a sidecar
	hosts   int                        // how many pods have had an address so far
	names   *pickerNames
	proxies []*envoy.Envoy
	service *rollingService
}

// rollingPairs is how many of each there are.
const rollingPairs = 2

// newRollingFleet starts all of it. The plain engine, which is asked about every answer, does not take its time.
func newRollingFleet(t *testing.T) *rollingFleet {
	t.Helper()
	envoy.Require(t)
	dir := t.TempDir()
	f := &rollingFleet{
		Fleet:   &harness.Fleet{Config: filepath.Join(dir, "config.yaml"), Endpoints: filepath.Join(dir, "endpoints.yaml")},
		engines: map[string]harness.Program{}, names: startPickerNames(t), service: &rollingService{},
	}
	f.Plain = harness.StartSim(t, "plain", "--time-scale=0")
	for i := range rollingPairs {
		f.Prefill = append(f.Prefill, f.startPrefill(t, i, f.newHost()))
		f.Decode = append(f.Decode, f.startPod(t, i, f.newHost()))
	}
	var err error
	if f.Model, err = harness.DecodeModel(f.Plain.Addr); err != nil {
		t.Fatal(err)
	}
	f.WriteConfig(t, fmt.Sprintf(harness.PdConfig, harness.Threshold, ""))
	f.WriteEndpoints(t)
	for i := range rollingPairs {
		f.Pickers = append(f.Pickers, f.startReplica(t, i, f.newHost()))
	}
	f.names.set(f.pickerAddrs()...)
	for range rollingPairs {
		f.proxies = append(f.proxies, f.startProxy(t, f.newHost()))
	}
	f.publish(t)
	f.Front.Stat = f.stat
	return f
}

// stat reads a counter of the proxy where it is highest.
func (f *rollingFleet) stat(t *testing.T, name string) (highest int) {
	t.Helper()
	for _, e := range f.proxies {
		stats, err := e.Stats(harness.Within(t), name)
		if err != nil {
			t.Fatal(err)
		}
		sum := int64(0)
		for _, n := range stats {
			sum += n
		}
		highest = max(highest, int(sum))
	}
	return highest
}

// newHost returns the address of one more pod. No program connects from there, so its ports are free again once it has ended.
func (f *rollingFleet) newHost() string {
	f.hosts++
	return fmt.Sprintf("127.1.%d.%d:0", f.hosts/200, 1+f.hosts%200)
}

// startPrefill starts prefill engine i at an address. Flags are added.
func (f *rollingFleet) startPrefill(t *testing.T, i int, at string, flags ...string) harness.Engine {
	t.Helper()
	name := fmt.Sprintf("prefill-%d", i)
	f.engines[name] = harness.Start(t, stack.Sim(harness.BinDir, name, slices.Concat([]string{"--role=prefill"}, listenAt(at), flags)...))
	return harness.Engine{Addr: f.engines[name].Addr("http")}
}

// listenAt returns the flags by which a program listens at an address.
func listenAt(addr string) []string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		panic(err)
	}
	return []string{"--host=" + host, "--port=" + port}
}

// startPod starts decode pod i, its sidecar at an address. The engine is on the pod's loopback, which no other program uses.
func (f *rollingFleet) startPod(t *testing.T, i int, at string) harness.DecodePod {
	t.Helper()
	name := fmt.Sprintf("decode-%d", i)
	f.engines[name] = harness.Start(t, stack.Sim(harness.BinDir, name, "--role=decode"))
	decode := f.engines[name].Addr("http")
	return harness.DecodePod{Engine: harness.Engine{Addr: decode}, Sidecar: harness.StartSidecar(t, decode, listenAt(at)...)}
}

// startReplica starts picker i at an address. All have the same port, as pods of one Deployment have.
func (f *rollingFleet) startReplica(t *testing.T, i int, at string) harness.Program {
	t.Helper()
	host, port, err := net.SplitHostPort(at)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Pickers) > 0 {
		port = portOf(f.Pickers[0].Addr("extproc"))
	}
	what := stack.EPP(harness.BinDir, "--secure-serving=false", "--config-file="+f.Config, "--endpoints-file="+f.Endpoints,
		"--host="+host, "--grpc-port="+port)
	what.Name = fmt.Sprintf("epp-%d", i)
	return harness.Start(t, what)
}

func (f *rollingFleet) pickerAddrs() (addrs []string) {
	for _, p := range f.Pickers {
		addrs = append(addrs, p.Addr("extproc"))
	}
	return addrs
}

// startProxy starts an Envoy as the chart does, which knows the pickers by their name.
func (f *rollingFleet) startProxy(t *testing.T, listen string) *envoy.Envoy {
	t.Helper()
	text, err := harness.Output("tandem", "envoy-config", "--listen="+listen, "--admin-address=127.0.0.1:0", "--epp-plaintext",
		"--epp=pickers.test:"+portOf(f.Pickers[0].Addr("extproc")))
	if err != nil {
		t.Fatal(err)
	}
	return harness.LaunchEnvoy(t, f.names.resolve(t, text), "--drain-time-s", "60")
}

// publish has the service name these proxies, all if none is given.
func (f *rollingFleet) publish(t *testing.T, proxies ...*envoy.Envoy) {
	t.Helper()
	if len(proxies) == 0 {
		proxies = f.proxies
	}
	var addrs []string
	for _, e := range proxies {
		addrs = append(addrs, harness.Listener(t, e))
	}
	f.service.set(addrs...)
	f.Front.Addr = addrs[0]
}

// awaitPickers waits until every proxy takes so many pickers for healthy, and knows of no other one.
func (f *rollingFleet) awaitPickers(t *testing.T, n int) {
	t.Helper()
	const members = "cluster." + envoyconf.PickerCluster + ".membership_total"
	const healthy = "cluster." + envoyconf.PickerCluster + ".membership_healthy"
	for _, e := range f.proxies {
		f.Eventually(t, "pickers that Envoy knows", func() (string, bool) {
			stats, err := e.Stats(harness.Within(t), "cluster\\."+envoyconf.PickerCluster+"\\.membership")
			if err != nil {
				return err.Error(), false
			}
			return fmt.Sprint(stats), stats[healthy] == int64(n) && stats[members] == int64(n)
		})
	}
}

// awaitPool waits until every picker and every proxy knows the pool as it is.
func (f *rollingFleet) awaitPool(t *testing.T) {
	t.Helper()
	var decode, all []string
	for _, p := range f.Decode {
		decode = append(decode, p.Addr())
	}
	for _, e := range f.Prefill {
		all = append(all, e.Addr)
	}
	all = slices.Sorted(slices.Values(append(all, decode...)))
	slices.Sort(decode)
	for _, p := range f.Pickers {
		f.Eventually(t, "the pool that "+p.Name()+" knows", func() (string, bool) {
			state, err := harness.EndpointsOf(p)
			if err != nil {
				return err.Error(), false
			}
			var known []string
			for _, e := range state.Endpoints {
				known = append(known, e.Address)
			}
			slices.Sort(known)
			return fmt.Sprint(known), slices.Equal(known, all)
		})
	}
	for _, e := range f.proxies {
		f.Eventually(t, "the decode endpoints that Envoy knows", func() (string, bool) {
			known, err := e.Hosts(harness.Within(t), envoyconf.PoolCluster)
			if err != nil {
				return err.Error(), false
			}
			slices.Sort(known)
			return fmt.Sprint(known), slices.Equal(known, decode)
		})
	}
}

func portOf(addr string) string {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		panic(err)
	}
	return port
}

// preStop returns the hook of a component's pods, by the chart that users install, before the addresses of this test.
func preStop(t *testing.T, component string, addrs map[string]string) []string {
	t.Helper()
	return preStopOf(t, "sim", component, addrs)
}

// preStopOf is preStop with one of the values with which the chart is tested.
func preStopOf(t *testing.T, values, component string, addrs map[string]string) []string {
	t.Helper()
	file, err := os.Open("../../charts/testdata/golden/" + values + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	args := chartHook(t, file, component)
	for i, arg := range args {
		if flag, _, ok := strings.Cut(arg, "="); ok && addrs[flag] != "" {
			args[i] = flag + "=" + addrs[flag]
			delete(addrs, flag)
		}
	}
	if len(addrs) > 0 || len(args) == 0 {
		t.Fatalf("the chart's hook of %s is %q, which does not ask %v", component, args, addrs)
	}
	return args
}

// chartHook finds the arguments of the preStop hook in what the chart renders to.
func chartHook(t *testing.T, manifests io.Reader, component string) (args []string) {
	t.Helper()
	for documents := yaml.NewDecoder(manifests); ; {
		var d struct {
			Kind     string
			Metadata struct{ Labels map[string]string }
			Spec     struct {
				Template struct {
					Spec struct {
						Containers []struct {
							Lifecycle struct {
								PreStop struct{ Exec struct{ Command []string } } `yaml:"preStop"`
							}
						}
					}
				}
			}
		}
		err := documents.Decode(&d)
		if errors.Is(err, io.EOF) {
			return nil
		}
		var partly *yaml.TypeError // other kinds have other shapes
		if err != nil && !errors.As(err, &partly) {
			t.Fatal(err)
		}
		if d.Kind != "Deployment" || d.Metadata.Labels["app.kubernetes.io/component"] != component {
			continue
		}
		for _, c := range d.Spec.Template.Spec.Containers {
			if command := c.Lifecycle.PreStop.Exec.Command; len(command) > 0 {
				return command[1:]
			}
		}
	}
}

// hook runs a preStop hook. A hook that gives up has lost something.
func hook(t *testing.T, args []string) {
	t.Helper()
	c := exec.CommandContext(harness.Within(t), filepath.Join(harness.BinDir, "tandem"), args...)
	if said, err := c.CombinedOutput(); err != nil {
		t.Errorf("tandem %s: %v\n%s", strings.Join(args, " "), err, said)
	}
}

// stranded reads how many hand-offs a sidecar could not release.
func stranded(t *testing.T, sidecar harness.Program) float64 {
	t.Helper()
	return harness.Sample(t, sidecar.Addr("metrics"), "tandem_kv_stranded_total")
}

// rollingService stands for a Kubernetes Service: each new connection goes to one of the pods that are ready at that moment.
type rollingService struct {
	addrs atomic.Pointer[[]string]
	turn  atomic.Uint64
}

func (s *rollingService) set(addrs ...string) { s.addrs.Store(&addrs) }

// dial is for http.Transport.
func (s *rollingService) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	addrs := *s.addrs.Load()
	return (&net.Dialer{}).DialContext(ctx, network, addrs[s.turn.Add(1)%uint64(len(addrs))])
}

// pickerNames is a name server with one name, that of the pickers: a headless Service.
type pickerNames struct {
	conn  net.PacketConn
	mu    sync.Mutex // guards the fields below
	hosts []net.IP
	fault nameFault
	vain  int // questions that got no address since the server fails
}

// nameFault is how a name server fails.
type nameFault string

const (
	noNameFault   nameFault = ""
	serverFailure nameFault = "each answer is that the server has failed"
	noAnswer      nameFault = "it does not answer"
)

// fail has the name server fail from now on, or work again.
func (n *pickerNames) fail(how nameFault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fault, n.vain = how, 0
}

// inVain returns how many questions got no address since the server fails.
func (n *pickerNames) inVain() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.vain
}

func startPickerNames(t *testing.T) *pickerNames {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &pickerNames{conn: conn}
	var serving sync.WaitGroup
	serving.Go(n.serve)
	t.Cleanup(func() { conn.Close(); serving.Wait() })
	return n
}

// set makes the name stand for the hosts of these addresses.
func (n *pickerNames) set(addrs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts = nil
	for _, addr := range addrs {
		host, _, _ := net.SplitHostPort(addr)
		n.hosts = append(n.hosts, net.ParseIP(host).To4())
	}
}

func (n *pickerNames) serve() {
	buf := make([]byte, 512)
	for {
		size, from, err := n.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		if answer := n.answer(buf[:size]); answer != nil {
			_, _ = n.conn.WriteTo(answer, from) // a lost answer is asked for again
		}
	}
}

// answer is that to one question, by RFC 1035: all addresses if it asks for type A, else that there are none; nil is no answer.
func (n *pickerNames) answer(query []byte) []byte {
	const header, typeA, classIN = 12, 1, 1
	end := bytes.IndexByte(query[min(header, len(query)):], 0) + header + 5 // the name, its end, type and class
	if end < header+5 || len(query) < end {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	hosts, code := n.hosts, byte(0)
	if n.fault != noNameFault {
		n.vain++
	}
	switch n.fault {
	case noAnswer:
		return nil
	case serverFailure:
		hosts, code = nil, 2
	}
	if binary.BigEndian.Uint16(query[end-4:]) != typeA {
		hosts = nil
	}
	a := append([]byte(nil), query[:2]...)
	a = append(a, 0x84, code, 0, 1, 0, byte(len(hosts)), 0, 0, 0, 0) // an authoritative answer to one question
	a = append(a, query[header:end]...)
	for _, host := range hosts {
		a = append(a, 0xc0, header, 0, typeA, 0, classIN, 0, 0, 0, 5, 0, net.IPv4len) // the name of the question, for 5 s
		a = append(a, host...)
	}
	return a
}

// resolve has an Envoy ask this name server.
func (n *pickerNames) resolve(t *testing.T, bootstrap string) string {
	t.Helper()
	const at = "    dns_lookup_family: V4_PREFERRED\n"
	before, after, found := strings.Cut(bootstrap, at)
	if !found {
		t.Fatal("the bootstrap resolves no names")
	}
	return before + at + `    typed_dns_resolver_config:
      name: envoy.network.dns_resolver.cares
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig
        resolvers: [ { socket_address: { address: 127.0.0.1, port_value: ` + portOf(n.conn.LocalAddr().String()) + ` } } ]
        dns_resolver_options: { no_default_search_domain: true }
` + after
}
