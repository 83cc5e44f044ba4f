package envoyconf_test

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/epp/extproc/envoyconf"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/stack/envoy"
)

var update = flag.Bool("update", false, "write the golden bootstraps")

func bootstrap(t *testing.T, o envoyconf.Options) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := envoyconf.Bootstrap(&b, o); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func static(addresses ...string) (ports []netip.AddrPort) {
	for _, a := range addresses {
		ports = append(ports, netip.MustParseAddrPort(a))
	}
	return ports
}

func TestBootstrapGolden(t *testing.T) {
	everything := envoyconf.Defaults()
	everything.Listen, everything.Pickers = "[::]:80", []string{"epp-0.epp:9002", "epp-1.epp:9002"}
	everything.Filters, everything.PickerTLS.CAFile = envoyconf.FiltersSingle, `/etc/tandem/"ca".pem`
	everything.Pool, everything.Static = envoyconf.PoolStatic, static("10.0.0.1:8000", "[fd00::1]:8000")
	everything.PickerTLS.Name = "epp.ns.svc"
	everything.PoolTLS = envoyconf.PeerTLS{CAFile: "/etc/tandem/pool.pem", Name: "decode.ns.svc"}
	everything.PoolHTTP2, everything.FailOpen = true, true
	everything.Cert = envoyconf.OwnCert{Dir: "/etc/tandem/tls", File: "/etc/tandem/certificate.yaml"}
	everything.ClientCA = "/etc/tandem/clients.pem"
	everything.AccessLog, everything.Collector, everything.TraceRatio = true, "collector:4317", 0.1
	everything.Canary = envoyconf.Canary{Address: "next.ns.svc:80", Percent: 2.5, TLS: true}
	everything.HTTPFilters = "- name: envoy.filters.http.cors\n  typed_config: # of the operator\n    '@type': type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors\n"
	everything.MaxHeap = 1 << 30
	everything.BodyLimit, everything.Idle, everything.Operations = 1<<20, time.Minute, "0.0.0.0:9902"
	originalDst := envoyconf.Defaults()
	originalDst.Pool, originalDst.PickerTLS.Plaintext = envoyconf.PoolOriginalDst, true
	for name, o := range map[string]envoyconf.Options{
		"default": envoyconf.Defaults(), "everything": everything, "original-dst": originalDst} {
		t.Run(name, func(t *testing.T) {
			got, file := bootstrap(t, o), filepath.Join("testdata", "bootstrap", name+".yaml")
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s is not what is written (go test -update writes it):\n%s", file, got)
			}
		})
	}
}

// The chart fills the same templates.
func TestChartHasTheTemplates(t *testing.T) {
	for here, there := range map[string]string{
		"bootstrap.yaml.tmpl": "envoy.yaml.tmpl", "certificate.yaml.tmpl": "certificate.yaml.tmpl"} {
		want, err := os.ReadFile(here)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("..", "..", "..", "charts", "tandem", there)
		if *update {
			if err := os.WriteFile(file, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not %s (go test -update copies it); error %v", file, here, err)
		}
	}
}

// Envoy itself takes every combination of options.
func TestBootstrapIsValid(t *testing.T) {
	envoy.Require(t)
	dir := t.TempDir()
	ca := writeKeyPair(t, dir, "epp.invalid", 1)
	certificate := writeCertificateFile(t, dir)
	for _, filters := range []envoyconf.Filters{envoyconf.FiltersPair, envoyconf.FiltersSingle} {
		for _, pool := range []envoyconf.PoolSource{envoyconf.PoolEDS, envoyconf.PoolStatic, envoyconf.PoolOriginalDst} {
			for _, security := range []string{"plaintext", "tls", "ca"} {
				for _, rich := range []bool{false, true} {
					o := envoyconf.Defaults()
					o.Filters, o.Pool, o.PickerTLS.Plaintext = filters, pool, security == "plaintext"
					if security == "ca" {
						o.PickerTLS.CAFile, o.PickerTLS.Name, o.Cert.Dir = ca, "epp.invalid", dir
						o.PoolTLS = envoyconf.PeerTLS{CAFile: ca, Name: "decode.invalid"}
						o.Client.Dir = dir
					}
					if pool == envoyconf.PoolStatic {
						o.Static = static("10.0.0.1:8000", "[fd00::1]:8000")
					}
					if rich {
						o.AccessLog, o.Collector, o.TraceRatio = true, "127.0.0.1:4317", 0.1
						o.Canary = envoyconf.Canary{Address: "10.0.0.9:80", Percent: 0.01, TLS: security != "plaintext"}
						o.Pickers = []string{"localhost:9002", "epp.invalid:9002"}
						o.Operations, o.PoolTLS.Plaintext, o.MaxHeap = "0.0.0.0:0", false, 1<<30
						if o.Cert.Dir != "" {
							o.Cert.File, o.Client.File = certificate, certificate
						}
					}
					t.Run(fmt.Sprintf("%s/%s/%s/rich=%v", filters, pool, security, rich), func(t *testing.T) {
						t.Parallel()
						if err := envoy.Validate(t.Context(), bootstrap(t, o)); err != nil {
							t.Error(err)
						}
					})
				}
			}
		}
	}
}

func TestBootstrapProblems(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(*envoyconf.Options)
		want  string
	}{
		{"listen", func(o *envoyconf.Options) { o.Listen = ":8080" }, `listen: ":8080" is not IP:PORT`},
		{"admin", func(o *envoyconf.Options) { o.Admin = "localhost:1" }, "admin-address: "},
		{"operations", func(o *envoyconf.Options) { o.Operations = ":9902" }, `operations-address: ":9902" is not IP:PORT`},
		{"operations of nothing", func(o *envoyconf.Options) { o.Operations, o.Admin = "0.0.0.0:9902", "127.0.0.1:0" },
			"admin-address: must have a port"},
		{"certificate of nothing", func(o *envoyconf.Options) { o.Cert.File = "certificate.yaml" }, "cert-file: "},
		{"client authority without TLS", func(o *envoyconf.Options) { o.ClientCA = "ca.crt" }, "client-ca: without cert-path"},
		{"client certificate of nothing", func(o *envoyconf.Options) { o.Client.File = "certificate.yaml" }, "client-cert-file: "},
		{"client certificate without TLS", func(o *envoyconf.Options) { o.Client.Dir, o.PickerTLS.Plaintext = "tls", true }, "client-cert-path: "},
		{"pool's certificate", func(o *envoyconf.Options) { o.PoolTLS.CAFile = "ca" }, "pool-ca: "},
		{"pool's name", func(o *envoyconf.Options) { o.PoolTLS = envoyconf.PeerTLS{Name: "decode"} }, "pool-server-name: "},
		{"trace ratio", func(o *envoyconf.Options) { o.TraceRatio = 1.5 }, "trace-ratio: 1.5 is not from 0 to 1"},
		{"canary without a port", func(o *envoyconf.Options) { o.Canary.Address = "next" }, `canary: "next" is not HOST:PORT`},
		{"a share for no canary", func(o *envoyconf.Options) { o.Canary.Percent = 5 }, "canary: there must be an address for 5 %"},
		{"more than all", func(o *envoyconf.Options) { o.Canary = envoyconf.Canary{Address: "next:80", Percent: 101} },
			"canary-percent: 101 is not from 0 to 100"},
		{"filters that are no YAML", func(o *envoyconf.Options) { o.HTTPFilters = "- {" }, "http-filters: reading the HTTP filters: "},
		{"filters that are no list", func(o *envoyconf.Options) { o.HTTPFilters = "name: x" }, "http-filters: the HTTP filters are not a list"},
		{"a filter without a name", func(o *envoyconf.Options) { o.HTTPFilters = "- name: x\n- {}" }, "http-filters: HTTP filter 1 has no name"},
		{"a second router", func(o *envoyconf.Options) { o.HTTPFilters = "- name: envoy.filters.http.router" },
			"http-filters: the HTTP filter envoy.filters.http.router is there already"},
		{"idle", func(o *envoyconf.Options) { o.Idle = 999 * time.Millisecond }, "idle-timeout: must be 1s or more"},
		{"mode", func(o *envoyconf.Options) { o.Filters = "triple" }, "mode: "},
		{"pool", func(o *envoyconf.Options) { o.Pool = "dns" }, "pool: "},
		{"no endpoints", func(o *envoyconf.Options) { o.Pool = envoyconf.PoolStatic }, "endpoint: a static pool"},
		{"endpoints", func(o *envoyconf.Options) { o.Static = static("10.0.0.1:1") }, "endpoint: only"},
		{"certificate", func(o *envoyconf.Options) { o.PickerTLS.Plaintext, o.PickerTLS.CAFile = true, "ca" }, "epp-ca: "},
		{"body limit", func(o *envoyconf.Options) { o.BodyLimit = 0 }, "body-limit: "},
		{"heap", func(o *envoyconf.Options) { o.MaxHeap = 1 << 20 }, "max-heap: must be 64 MiB or more"},
		{"no EPP", func(o *envoyconf.Options) { o.Pickers = nil }, "epp: there must be"},
		{"EPP", func(o *envoyconf.Options) { o.Pickers = []string{"a b:1"} }, `epp: "a b:1" is not HOST:PORT`},
		{"mixed EPPs", func(o *envoyconf.Options) { o.Pickers = []string{"10.0.0.1:1", "epp:1"} }, "epp: give all"},
		{"collector", func(o *envoyconf.Options) { o.Collector = "x" }, "otlp: "},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			o := envoyconf.Defaults()
			test.spoil(&o)
			var b bytes.Buffer
			if err := envoyconf.Bootstrap(&b, o); err == nil || !strings.Contains(err.Error(), test.want) || b.Len() > 0 {
				t.Errorf("error %v with %d bytes written, want %q", err, b.Len(), test.want)
			}
		})
	}
}

// front is an Envoy whose picker is a Baseline.
type front struct {
	url      string
	envoy    *envoy.Envoy
	baseline *grpc.Server
}

// startFront starts an Envoy with the default bootstrap, as changed by change, and a Baseline as its picker.
func startFront(t *testing.T, baseline *client.Baseline, change func(*envoyconf.Options)) *front {
	t.Helper()
	server := grpc.NewServer()
	baseline.Register(server)
	return startEnvoy(t, server, change)
}

func startEnvoy(t *testing.T, server *grpc.Server, change func(*envoyconf.Options)) *front {
	t.Helper()
	envoy.Require(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		<-served
	})
	o := envoyconf.Defaults()
	o.Listen, o.Admin, o.Pickers, o.PickerTLS.Plaintext = "127.0.0.1:0", "127.0.0.1:0", []string{l.Addr().String()}, true
	if change != nil {
		change(&o)
	}
	e, err := envoy.Start(t.Context(), bootstrap(t, o))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
	address, err := e.Listener(t.Context(), envoyconf.ListenerName)
	if err != nil {
		t.Fatal(err)
	}
	return &front{"http://" + address, e, server}
}

type reply struct {
	status int
	header http.Header
	body   string
}

func (f *front) post(t *testing.T, header http.Header, body string) reply {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = header
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	a, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{a.StatusCode, a.Header, string(text)}
}

// Envoy removes what pd calls internal, and nothing else, even if the picker does not.
func TestEnvoyRemovesInternalHeaders(t *testing.T) {
	got := make(chan http.Header, 1)
	endpoint := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header }))
	defer endpoint.Close()
	address := endpoint.Listener.Addr().String()
	f := startFront(t, &client.Baseline{Endpoints: address}, func(o *envoyconf.Options) {
		o.Pool, o.Static = envoyconf.PoolStatic, static(address)
	})
	sent := http.Header{}
	for _, name := range []string{
		pd.HeaderMode, pd.HeaderPlan, pd.HeaderAuth, pd.HeaderDecision, pd.HeaderOutcome, pd.HeaderRetry,
		"x-tandem-", "x-tandem-p", "x-tandem-pdx", "x-tandem-pd-", "x-tandem-px", "x-tandem-d", "x-tandemic",
		pd.HeaderPrefillNew, "x-llm-d-encoder-hosts-ports", "x-llm-d-kv-cache-source-host-port",
		pd.HeaderPrefill, "x-prefiller-url", "x-encoder-hosts-ports", "x-kv-cache-source-host-port",
		"x-data-parallel-host-port", "x-data-parallel-rank", "x-data-type",
		epp.HeaderDestination, epp.HeaderSubset, epp.HeaderServed, pd.HeaderRequestID, "x-gateway-other",
		epp.HeaderTarget, epp.HeaderTargetOld, epp.HeaderObjective,
	} {
		sent.Set(name, "client")
	}
	if a := f.post(t, sent.Clone(), "{}"); a.status != http.StatusOK {
		t.Fatalf("answer %+v", a)
	}
	arrived := <-got
	for name := range sent {
		another := strings.EqualFold(name, epp.HeaderTarget) || strings.EqualFold(name, epp.HeaderTargetOld)
		want := !pd.Internal(name) && !another || strings.EqualFold(name, pd.HeaderMode)
		if here := arrived.Get(name) == "client"; here != want {
			t.Errorf("%s of the client arrived: %v, want %v", name, here, want)
		}
	}
}

// Envoy's own answers are JSON; the picker's answers pass unchanged.
func TestEnvoyAnswersJSON(t *testing.T) {
	own := &client.Reply{Status: 429, Body: []byte(`{"mine":1}`),
		Header: http.Header{"content-type": {"application/json"}, "retry-after": {"7"}}}
	f := startFront(t, &client.Baseline{Endpoints: "127.0.0.1:9", Watch: func(e client.Event) (*client.Reply, error) {
		if e.Kind == client.RequestHeaders && e.Header.Get("X-Ask") != "" {
			return own, nil
		}
		return nil, nil
	}}, func(o *envoyconf.Options) { o.Pool, o.Static = envoyconf.PoolStatic, static("127.0.0.1:9") })
	a := f.post(t, http.Header{"X-Ask": {"1"}}, "{}")
	if a.status != 429 || a.body != `{"mine":1}` || a.header.Get("Retry-After") != "7" {
		t.Errorf("the picker's own answer: %+v", a)
	}
	unavailable := func(what string) {
		t.Helper()
		a := f.post(t, http.Header{}, "{}")
		if a.status != 503 || !strings.Contains(a.body, `"code":"no-endpoint"`) || a.header.Get("Retry-After") != "1" ||
			a.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %+v", what, a)
		}
	}
	unavailable("no endpoint alive")
	f.baseline.Stop()
	unavailable("no picker")
}

// A retry takes the next endpoint of the picker's list, whatever the size of the body, and acct is told the endpoint that served.
func TestEnvoyTriesTheNextEndpoint(t *testing.T) {
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead.Close()
	handlers := map[string]http.HandlerFunc{
		"refused": nil,
		"retry header": func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.Header().Set(pd.HeaderRetry, "1")
			w.WriteHeader(http.StatusServiceUnavailable)
		},
		"dies": func(_ http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			panic(http.ErrAbortHandler)
		},
		"dies while it reads": func(_ http.ResponseWriter, r *http.Request) {
			io.CopyN(io.Discard, r.Body, 1<<20)
			panic(http.ErrAbortHandler)
		},
	}
	for name, handler := range handlers {
		t.Run(name, func(t *testing.T) {
			first := dead.Addr().String()
			if handler != nil {
				s := httptest.NewServer(handler)
				defer s.Close()
				first = s.Listener.Addr().String()
			}
			live := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n, _ := io.Copy(io.Discard, r.Body)
				fmt.Fprint(w, n)
			}))
			defer live.Close()
			second, served := live.Listener.Addr().String(), make(chan string, 1)
			f := startFront(t, &client.Baseline{Endpoints: first + "," + second, Watch: func(e client.Event) (*client.Reply, error) {
				if e.Kind == client.ResponseHeaders && e.Mark == client.MarkAcct && !e.End {
					served <- e.Served
				}
				return nil, nil
			}}, func(o *envoyconf.Options) { o.Pool, o.Static = envoyconf.PoolStatic, static(first, second) })
			if a := f.post(t, http.Header{}, strings.Repeat("x", 4<<20)); a.status != 200 || a.body != fmt.Sprint(4<<20) {
				t.Errorf("answer %+v", a)
			}
			if by := <-served; by != second {
				t.Errorf("served by %s, want %s", by, second)
			}
			f.wantClean(t)
		})
	}
}

// An endpoint that is full and does not say that another may try has the last word: asking others would spread the overload.
func TestEnvoyLeavesRefusalsAlone(t *testing.T) {
	for _, status := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			full := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				w.WriteHeader(status)
				io.WriteString(w, "full")
			}))
			defer full.Close()
			idle := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("another was asked") }))
			defer idle.Close()
			first, second := full.Listener.Addr().String(), idle.Listener.Addr().String()
			f := startFront(t, &client.Baseline{Endpoints: first + "," + second}, func(o *envoyconf.Options) {
				o.Pool, o.Static = envoyconf.PoolStatic, static(first, second)
			})
			// Not even if the client asks for it: Envoy has headers of its own for that.
			if a := f.post(t, http.Header{"X-Envoy-Retry-On": {"5xx,retriable-4xx"}}, "{}"); a.status != status || a.body != "full" {
				t.Errorf("answer %+v", a)
			}
			f.wantClean(t)
		})
	}
}

// wantClean checks that Envoy took every frame, and that no stream is left.
func (f *front) wantClean(t *testing.T) {
	t.Helper()
	stats, err := f.envoy.Stats(t.Context(), "ext_proc")
	if err != nil {
		t.Fatal(err)
	}
	if len(stats) == 0 {
		t.Error("there are no ext_proc statistics")
	}
	for name, n := range stats {
		if n != 0 && (strings.HasSuffix(name, "spurious_msgs_received") || strings.HasSuffix(name, "rejected_header_mutations")) {
			t.Errorf("%s: %d", name, n)
		}
	}
}
