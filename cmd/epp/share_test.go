package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/cmd/internal/boottest"
	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/epp/replica"
)

// fourEndpoints starts four engines that accept connections, and returns a file with them.
func fourEndpoints(t *testing.T) string {
	t.Helper()
	text := "endpoints:\n"
	for _, name := range []string{"a", "b", "c", "d"} {
		engine := httptest.NewServer(http.NotFoundHandler())
		t.Cleanup(engine.Close)
		host, port, err := net.SplitHostPort(engine.Listener.Addr().String())
		must(t, err)
		text += fmt.Sprintf("- {name: %s, address: %s, port: %q}\n", name, host, port)
	}
	file := filepath.Join(t.TempDir(), "endpoints.yaml")
	write(t, file, text)
	return file
}

// fewestRequests is a configuration that picks the endpoint with the fewest requests in flight.
const fewestRequests = `{apiVersion: llm-d.ai/v1, kind: EndpointPickerConfig, plugins: [{type: active-request-scorer}], dataLayer: {crossReplica: {syncInterval: 1ms}}}`

// sent sends a request, and returns where it goes.
func (s *served) sent(t *testing.T) (*client.Stream, string) {
	t.Helper()
	stream, head, path := s.send(t), http.Header{}, ""
	for !stream.RequestDone() {
		answer, err := stream.Recv()
		must(t, err)
		answer.Mutation.Apply(head, &path)
	}
	return stream, head.Get("x-gateway-destination-endpoint")
}

// mustShare waits until a picker counts so many requests of its replicas.
func (s *served) mustShare(t *testing.T, replicas, requests int) {
	t.Helper()
	eventually(t, func() bool {
		var state struct{ Replicas []replica.State }
		_, text := s.ask(t, http.MethodGet, "admin", "/debug/replicas", nil)
		must(t, json.Unmarshal([]byte(text), &state))
		sum := 0
		for _, r := range state.Replicas {
			sum += r.Requests
		}
		return len(state.Replicas) == replicas && sum == requests
	})
}

// Two replicas balance as one would: the second sends its requests where the first has none left.
func TestReplicasBalance(t *testing.T) {
	certs := t.TempDir()
	boottest.KeyPair(t, certs, 1)
	for name, secure := range map[string][]string{
		"plaintext":  nil,
		"mutual TLS": {"--share-cert-path=" + certs, "--share-ca=" + filepath.Join(certs, "tls.crt")},
	} {
		t.Run(name, func(t *testing.T) {
			flags := append([]string{"--secure-serving=false", "--drain-timeout=1ms", "--share-address=127.0.0.1:0", "--endpoints-file=" + fourEndpoints(t), "--config-text=" + fewestRequests}, secure...)
			first := serveWith(t, nil, flags...)
			_, port, err := net.SplitHostPort(first.addresses["share"])
			must(t, err)
			second := serveWith(t, nil, append(flags, "--share-with=localhost:"+port)...)
			at := map[string][]*client.Stream{}
			for range 8 {
				stream, to := first.sent(t)
				at[to] = append(at[to], stream)
			}
			second.mustShare(t, 1, 8)
			var freed []string
			for to, streams := range at {
				if len(streams) != 2 {
					t.Errorf("%s has %d requests of 8", to, len(streams))
				}
				if freed = append(freed, to); len(freed) == 2 {
					break
				}
			}
			for _, to := range freed {
				for _, s := range at[to] {
					s.Close()
				}
			}
			second.mustShare(t, 1, 4)
			for range 4 { // alone it would spread them over all four
				if _, to := second.sent(t); !slices.Contains(freed, to) {
					t.Errorf("a request went to %s, which has requests of the other replica, and not to %v", to, freed)
				}
			}
			_, text := second.ask(t, http.MethodGet, "metrics", "/metrics", nil)
			for _, want := range []string{"tandem_replicas_connected 1", "tandem_replicas_inflight 4", "tandem_replicas_lost_total 0", `tandem_inflight{component="epp",role="decode"} 4`} {
				if !strings.Contains(text, want) {
					t.Errorf("the metrics have no %s", want)
				}
			}
			first.stop()
			<-first.ended
			second.mustShare(t, 0, 0)
		})
	}
	t.Run("a replica without a certificate", func(t *testing.T) {
		first := serve(t, "--secure-serving=false", "--share-address=127.0.0.1:0", "--share-cert-path="+certs, "--share-ca="+filepath.Join(certs, "tls.crt"))
		second := serve(t, "--secure-serving=false", "--share-with="+first.addresses["share"])
		eventually(t, func() bool { return strings.Contains(second.stderr.String(), "cannot be followed") })
		second.mustShare(t, 0, 0)
	})
}

// cachedFirst is a configuration that picks the endpoint that has most of the prompt cached.
const cachedFirst = `{apiVersion: llm-d.ai/v1, kind: EndpointPickerConfig, plugins: [{type: approx-prefix-cache-producer}, {type: prefix-cache-scorer}], dataLayer: {crossReplica: {syncInterval: 1ms}}}`

// sentPrompt sends a completion, ends it, and returns where it went.
func (s *served) sentPrompt(t *testing.T, prompt string) string {
	t.Helper()
	conn, err := client.Dial(client.Options{Addresses: []string{s.addresses["extproc"]}, Plaintext: true})
	must(t, err)
	defer conn.Close()
	stream, err := conn.Open(t.Context(), client.Duplex())
	must(t, err)
	defer stream.Close()
	must(t, stream.RequestHeaders(client.RequestHead{Method: "POST", Path: "/v1/completions", Header: http.Header{}}, false))
	must(t, stream.RequestBody(fmt.Appendf(nil, `{"model":"m","prompt":%q}`, prompt), true))
	head, path := http.Header{}, ""
	for !stream.RequestDone() {
		answer, err := stream.Recv()
		must(t, err)
		answer.Mutation.Apply(head, &path)
	}
	return head.Get("x-gateway-destination-endpoint")
}

// Three replicas send a conversation to the same endpoint, whichever of them gets a turn, if they hash prompts with one secret.
func TestReplicasSharePrompts(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	write(t, key, "0123456789abcdef0123456789abcdef\n")
	flags := []string{"--secure-serving=false", "--drain-timeout=1ms", "--share-address=127.0.0.1:0", "--endpoints-file=" + fourEndpoints(t), "--config-text=" + cachedFirst, "--share-key-file=" + key}
	first := serveWith(t, nil, flags...)
	with := first.addresses["share"]
	second := serveWith(t, nil, append(flags, "--share-with="+with)...)
	third := serveWith(t, nil, append(flags, "--share-with="+with)...)
	for _, s := range []*served{second, third} {
		s.mustShare(t, 1, 0)
	}
	learned := func(s *served, n int) bool {
		_, text := s.ask(t, http.MethodGet, "metrics", "/metrics", nil)
		return strings.Contains(text, fmt.Sprintf("tandem_replicas_prompts_total{result=\"learned\"} %d\n", n))
	}
	const conversations = 12
	for i := range conversations {
		prompt := strings.Repeat(fmt.Sprintf("This is conversation number %d. ", i), 40)
		to := first.sentPrompt(t, prompt)
		for _, s := range []*served{second, third} {
			eventually(t, func() bool { return learned(s, i+1) })
			if next := s.sentPrompt(t, prompt+" Go on."); next != to {
				t.Errorf("conversation %d went to %s by one replica and to %s by another", i, to, next)
			}
		}
	}
}
