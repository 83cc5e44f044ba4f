package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-serving/tandem/e2e/answer"
	"github.com/tandem-serving/tandem/e2e/kube"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/server"
)

// errNone stands for no error in messages.
var errNone = errors.New("no error")

// call is one generate call of a client.
type call struct {
	api    pd.API
	stream bool
	prompt []int  // token ids, for completions
	text   string // for chat, and for completions without token ids
	tokens int    // of the answer
	header map[string]string
}

// reply is what a client got.
type reply = answer.Answer

func (c call) body(model string) ([]byte, error) {
	m := map[string]any{"model": model, "max_tokens": c.tokens, "temperature": 0, "return_token_ids": true, "ignore_eos": true}
	switch {
	case c.api == pd.APIChat:
		m["messages"] = []any{map[string]any{"role": "user", "content": c.text}}
	case c.prompt != nil:
		m["prompt"] = c.prompt
	default:
		m["prompt"] = c.text
	}
	if c.stream {
		m["stream"], m["stream_options"] = true, map[string]any{"include_usage": true}
	}
	return json.Marshal(m)
}

// over makes the call at host:port over a transport and reads the whole answer. The error is that of the connection.
func (c call) over(ctx context.Context, by http.RoundTripper, address, model string) (reply, error) {
	body, err := c.body(model)
	if err != nil {
		return reply{}, err
	}
	return answer.Post(ctx, by, "http://"+address+c.api.Path(), body, c.header)
}

// drawTokens makes a prompt of so many tokens that no client has sent before.
func drawTokens(random *rand.Rand, n int) []int {
	prompt := make([]int, n)
	for i := range prompt {
		prompt[i] = 300 + random.IntN(700)
	}
	return prompt
}

// drawText makes a text of about so many of the simulated engine's tokens: it has a vocabulary of two letters.
func drawText(random *rand.Rand, n int) string {
	var b strings.Builder
	for b.Len() < 3*n {
		fmt.Fprintf(&b, "%c%c ", 'a'+random.IntN(26), 'a'+random.IntN(26))
	}
	return b.String()
}

// address returns the host:port at which clients reach a release's proxy: the Service's name, where the cluster's resolver can be
// asked.
func (r *run) address(t *testing.T, to *release) string {
	t.Helper()
	service := to.object("proxy")
	if r.local != nil {
		return net.JoinHostPort(service+"."+to.namespace+".svc."+kube.Domain, "80")
	}
	if *realAddress != "" {
		return *realAddress
	}
	s, err := r.admin.CoreV1().Services(to.namespace).Get(r.ctx, service, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, in := range s.Status.LoadBalancer.Ingress {
		return net.JoinHostPort(in.IP+in.Hostname, "80")
	}
	return net.JoinHostPort(s.Spec.ClusterIP, "80")
}

// transport connects as clients in the cluster do, whose resolver is the cluster's.
func (c *cluster) transport() *http.Transport {
	dialer := &net.Dialer{}
	if c.local != nil {
		dialer.Resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, net.JoinHostPort(kube.DNS, "53"))
		}}
	}
	return &http.Transport{DialContext: dialer.DialContext, DisableCompression: true}
}

// ask makes one call at a release's proxy, which must not fail on the wire, and counts it.
func (r *run) ask(t *testing.T, to *release, c call) reply {
	t.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	address := r.address(t, to)
	transport := r.transport()
	defer transport.CloseIdleConnections()
	got, err := c.over(ctx, transport, address, to.serves)
	if err != nil {
		t.Fatalf("asking %s: %v (so far %+v)", address, err, got)
	}
	return got
}

// plainEngine is an engine in this process that nothing happens to.
type plainEngine struct{ addr string }

// startPlain starts a simulated engine that takes no time, with the name that the preset's model has.
func startPlain(t *testing.T) *plainEngine {
	t.Helper()
	data, admin := listen(t), listen(t)
	server, err := server.Serve(sim.Config{ServedModelName: "tandem/sim", TimeScale: 0}, data, admin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Close()
		if err := server.Wait(); err != nil {
			t.Error(err)
		}
	})
	return &plainEngine{addr: data.Addr().String()}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// plainTransport keeps no connection: a client is gone when its call is.
var plainTransport = &http.Transport{DisableKeepAlives: true}

// ask returns the tokens that the undisturbed engine answers with.
func (p *plainEngine) ask(ctx context.Context, c call) ([]int, error) {
	c.stream, c.header = false, nil
	got, err := c.over(ctx, plainTransport, p.addr, "tandem/sim")
	if err != nil || got.Status != http.StatusOK {
		return nil, fmt.Errorf("asking the undisturbed engine: status %d %s: %w", got.Status, got.Body, cmp.Or(err, errNone))
	}
	return got.Tokens, nil
}
