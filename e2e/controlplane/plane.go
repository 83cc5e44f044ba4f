package controlplane

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tandem-serving/tandem/stack"
)

const (
	// StartTimeout bounds the start of one program. A quiet machine takes 4 s for etcd and the API server together, and 2 s
	// more for a cluster.
	StartTimeout = 2 * time.Minute
	// tries is how often a program is started with other ports, since another process may take a free port first.
	tries = 3
)

// Plane is a running control plane.
type Plane struct {
	tb     testing.TB
	tools  string   // folder of the programs
	dir    string   // files of the programs
	token  string   // of the administrator
	host   string   // address of the API server
	port   int      // of the API server; 0 = any free one
	flags  []string // further flags of the API server
	etcd   *stack.Process
	server *stack.Process
	ports  ports
}

type ports struct{ etcd, peer, server int }

// ServiceRange is the range of the cluster addresses of Services.
const ServiceRange = "10.0.0.0/24"

// nowhere is an address for documentation (RFC 5737), which the API server would give to pods. Without it the API server
// looks for the machine's own address, and there may be none.
const nowhere = "192.0.2.1"

// Start runs a control plane on loopback until the test ends. If the programs are missing the test is skipped, or fails if
// CI=true.
func Start(tb testing.TB) *Plane {
	tb.Helper()
	// Without a controller-manager no namespace has the account named default, which admission would require.
	flags := []string{"--advertise-address=" + nowhere, "--disable-admission-plugins=ServiceAccount"}
	return StartAt(tb, "127.0.0.1", 0, flags)
}

// StartAt runs a control plane whose API server listens at a host and port (0: any free one), with further flags.
func StartAt(tb testing.TB, host string, port int, flags []string) *Plane {
	tb.Helper()
	p := &Plane{host: host, port: port, flags: flags}
	p.tb, p.tools, p.dir, p.token = tb, requireTools(tb), tb.TempDir(), rand.Text()
	tb.Cleanup(p.stop)
	if err := p.writeSecrets(); err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(tb.Context(), StartTimeout)
	defer cancel()
	var err error
	for range tries {
		if err = p.start(ctx); err == nil {
			break
		}
		p.stop()
	}
	if err != nil {
		tb.Fatal(err)
	}
	p.kubeconfig("admin", p.token, "default")
	return p
}

// Config returns the administrator's configuration, which has all rights.
func (p *Plane) Config() *rest.Config { return p.config(p.token) }

func (p *Plane) config(token string) *rest.Config {
	return &rest.Config{Host: p.URL(), BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAFile: p.Path("pki/apiserver.crt")},
		QPS: -1} // no limit: tests make thousands of objects
}

// URL returns the address of the API server.
func (p *Plane) URL() string {
	return "https://" + net.JoinHostPort(p.host, strconv.Itoa(p.ports.server))
}

// Path returns the path of a file of the control plane: keys, certificates and kubeconfigs.
func (p *Plane) Path(name string) string { return filepath.Join(p.dir, name) }

// StopAPIServer ends the API server at once. Its clients' connections break.
func (p *Plane) StopAPIServer() {
	p.tb.Helper()
	Kill(p.tb, &p.server)
}

// StartAPIServer restarts it, at the same address and with the same data, and waits until it is ready.
func (p *Plane) StartAPIServer(ctx context.Context) (err error) {
	p.server, err = p.Run(ctx, "kube-apiserver", p.URL()+"/readyz", p.serverFlags())
	return err
}

func (p *Plane) start(ctx context.Context) (err error) {
	if p.ports, err = freePorts(); err != nil {
		return err
	}
	if p.port != 0 {
		p.ports.server = p.port
	}
	if p.etcd, err = p.Run(ctx, "etcd", p.etcdURL()+"/health", p.etcdFlags()); err != nil {
		return err
	}
	return p.StartAPIServer(ctx)
}

// Run starts one of the programs in .tools/kube and waits until a URL of it answers that it is ready.
func (p *Plane) Run(ctx context.Context, name, url string, flags []string) (*stack.Process, error) {
	// The API server makes its certificate when it starts, so it cannot be verified before.
	client, err := rest.HTTPClientFor(&rest.Config{BearerToken: p.token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if err != nil {
		return nil, fmt.Errorf("asking %s: %w", name, err)
	}
	defer client.CloseIdleConnections()
	return stack.Start(ctx, stack.Program{Name: name, Path: filepath.Join(p.tools, name), Args: flags, ReadyTimeout: StartTimeout,
		Probe: func(ctx context.Context) error { return Get(ctx, client, url) }})
}

// StartControllers runs Kubernetes' controllers, those that flags name, until the test ends.
func (p *Plane) StartControllers(tb testing.TB, flags ...string) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(tb.Context(), StartTimeout)
	defer cancel()
	manager, err := p.Run(ctx, "kube-controller-manager", "https://"+net.JoinHostPort("127.0.0.1", strconv.Itoa(port))+"/healthz",
		append([]string{"--kubeconfig=" + p.Kubeconfig(), "--leader-elect=false", "--bind-address=127.0.0.1",
			"--secure-port=" + strconv.Itoa(port), "--cert-dir=" + p.Path("pki-manager"), "--profiling=false"}, flags...))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { Kill(tb, &manager) })
}

func (p *Plane) stop() {
	p.tb.Helper()
	Kill(p.tb, &p.server)
	Kill(p.tb, &p.etcd)
}

// Kill ends a program at once, unless *program is nil: it has no data that outlives the test. The test fails if the program
// had already ended by itself.
func Kill(tb testing.TB, program **stack.Process) {
	tb.Helper()
	if *program == nil {
		return
	}
	select {
	case <-(*program).Done():
		tb.Error((*program).Wait())
	default:
	}
	if err := (*program).Kill(); err != nil {
		tb.Error(err)
	}
	*program = nil
}

func (p *Plane) etcdURL() string { return loopback(p.ports.etcd) }

func loopback(port int) string { return "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func (p *Plane) etcdFlags() []string {
	return []string{"--name=plane", "--data-dir=" + p.Path("etcd"), "--unsafe-no-fsync", "--log-level=error",
		"--listen-client-urls=" + p.etcdURL(), "--advertise-client-urls=" + p.etcdURL(),
		"--listen-peer-urls=" + loopback(p.ports.peer), "--initial-advertise-peer-urls=" + loopback(p.ports.peer),
		"--initial-cluster=plane=" + loopback(p.ports.peer)}
}

func (p *Plane) serverFlags() []string {
	return append([]string{"--etcd-servers=" + p.etcdURL(), "--bind-address=" + p.host,
		"--secure-port=" + strconv.Itoa(p.ports.server), "--cert-dir=" + p.Path("pki"), "--token-auth-file=" + p.Path("tokens.csv"), "--authorization-mode=RBAC",
		"--service-account-key-file=" + p.Path("accounts.key"), "--service-account-signing-key-file=" + p.Path("accounts.key"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=" + ServiceRange,
		"--profiling=false"}, p.flags...)
}

// Get requests a URL, and fails unless the answer has status 200.
func Get(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

// freePorts returns ports that were free a moment ago, because the programs cannot choose free ports themselves.
func freePorts() (ports, error) {
	var found [3]int
	for i := range found {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return ports{}, fmt.Errorf("finding a free port: %w", err)
		}
		defer l.Close()
		found[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports{etcd: found[0], peer: found[1], server: found[2]}, nil
}

// requireTools returns .tools/kube of the checkout that the test runs in.
func requireTools(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for up := ""; dir != up; up, dir = dir, filepath.Dir(dir) {
		tools := filepath.Join(dir, ".tools", "kube")
		if _, err := os.Stat(filepath.Join(tools, "kube-apiserver")); err == nil {
			return tools
		}
	}
	const missing = "there is no Kubernetes control plane (make .tools/kube builds one)"
	if os.Getenv("CI") == "true" {
		tb.Fatal(missing)
	}
	tb.Skip(missing)
	return ""
}
