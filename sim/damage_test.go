package sim_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/sim/simtest"
)

// outcome is how a decode leg ends.
type outcome string

const (
	right outcome = "right tokens"
	wrong outcome = "wrong tokens"
	fails outcome = "500"
	dies  outcome = "the engine dies"
	hangs outcome = "no answer"
)

// matrix is the failure matrix of the real engine's decode leg: what is done to the params, and the outcome under each
// kv_load_failure_policy.
var matrix = []struct {
	name            string
	damage          func(map[string]any)
	fail, recompute outcome
}{
	{"undamaged", func(map[string]any) {}, right, right},
	{"do_remote_prefill false", set("do_remote_prefill", false), right, right},
	{"wrong engine id, right port", set("remote_engine_id", "00000000-0000-0000-0000-000000000000"), fails, right},
	{"wrong engine id, closed port", both(set("remote_engine_id", "00000000-0000-0000-0000-000000000001"), set("remote_port", 1)), fails, right},
	{"wrong port, known engine", set("remote_port", 1), right, right},
	{"wrong host, known engine", set("remote_host", "127.0.0.9"), right, right},
	{"wrong request id", set("remote_request_id", "cmpl-nope"), right, right},
	{"block ids out of range", set("remote_block_ids", [][]int{{100000, 100001, 100002, 100003}}), fails, right},
	{"negative block ids", set("remote_block_ids", [][]int{{-4, -3, -2, -1}}), fails, right},
	{"foreign block ids in range", set("remote_block_ids", [][]int{{400, 401, 402, 403}}), wrong, wrong},
	{"too many block ids", set("remote_block_ids", [][]int{{1, 2, 3, 4, 300, 301}}), wrong, wrong},
	{"string block ids", mapBlocks(func(ids []any) any { return []any{texts(ids)} }), right, right},
	{"only required members", only("do_remote_prefill", "remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port"), right, right},
	{"missing tp_size", drop("tp_size"), right, right},
	{"too few block ids", set("remote_block_ids", [][]int{{1, 2}}), dies, dies},
	{"empty block ids", set("remote_block_ids", []int{}), dies, dies},
	{"missing block ids", drop("remote_block_ids"), dies, dies},
	{"null block ids", set("remote_block_ids", nil), dies, dies},
	{"empty group of block ids", set("remote_block_ids", [][]int{{}}), dies, dies},
	{"flat block ids", mapBlocks(func(ids []any) any { return ids }), dies, dies},
	{"only the flag", only("do_remote_prefill"), dies, dies},
	{"missing engine id", drop("remote_engine_id"), hangs, hangs},
	{"missing request id", drop("remote_request_id"), hangs, hangs},
	{"missing host", drop("remote_host"), hangs, hangs},
	{"missing port", drop("remote_port"), hangs, hangs},
}

func set(name string, value any) func(map[string]any) {
	return func(h map[string]any) { h[name] = value }
}

func drop(name string) func(map[string]any) { return func(h map[string]any) { delete(h, name) } }

func both(a, b func(map[string]any)) func(map[string]any) {
	return func(h map[string]any) { a(h); b(h) }
}

func only(names ...string) func(map[string]any) {
	return func(h map[string]any) {
		for name := range h {
			if !slices.Contains(names, name) {
				delete(h, name)
			}
		}
	}
}

func mapBlocks(f func([]any) any) func(map[string]any) {
	return func(h map[string]any) { h["remote_block_ids"] = f(h["remote_block_ids"].([]any)[0].([]any)) }
}

func texts(ids []any) []string {
	var list []string
	for _, id := range ids {
		list = append(list, id.(json.Number).String())
	}
	return list
}

func TestFailureMatrix(t *testing.T) {
	plain := simtest.Start(t)
	for _, policy := range []sim.LoadFailurePolicy{sim.FailLoad, sim.RecomputeLoad} {
		for _, row := range matrix {
			want := row.fail
			if policy == sim.RecomputeLoad {
				want = row.recompute
			}
			t.Run(string(policy)+"/"+row.name, func(t *testing.T) {
				p := simtest.Start(t)
				d := simtest.Start(t, func(c *sim.Config) { c.KV.LoadFailure = policy; c.KV.HandshakeTimeout = time.Second })
				simtest.Complete(t, d, simtest.Greedy(simtest.Prompt(7, 40), 1, simtest.Prefill(t, p, simtest.Prompt(7, 40)))) // so that the engines know each other
				simtest.WaitForState(t, p, "the release of the first hand-off", simtest.Idle)
				ids := simtest.Prompt(1, 100)
				h := simtest.Prefill(t, p, ids)
				row.damage(h)
				reference := simtest.Complete(t, plain, simtest.Greedy(ids, 6, nil))
				if got := decodeOutcome(t, d, simtest.Greedy(ids, 6, h), reference.Tokens()); got != want {
					t.Errorf("%s, want %s", got, want)
				}
			})
		}
	}
}

// decodeOutcome runs a decode leg to its end. The client of one that hangs leaves, which kills the engine.
func decodeOutcome(t *testing.T, d *server.Server, body map[string]any, want []int) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), simtest.Timeout)
	defer cancel()
	answered, stuck := make(chan outcome, 1), make(chan bool, 1)
	go func() { answered <- judge(ctx, d, body, want) }()
	go func() { stuck <- waitsForEver(ctx, d.Engine) }()
	var got outcome
	select {
	case got = <-answered:
		cancel()
		<-stuck
	case hung := <-stuck:
		if hung {
			cancel() // the client leaves
		}
		got = <-answered
	}
	if got == dies || got == hangs {
		if err := d.Wait(); err == nil || !strings.Contains(err.Error(), "remote") {
			t.Errorf("the engine ended with %v", err)
		}
	}
	return got
}

// waitsForEver returns true once a request of the engine waits for ever, and false if ctx or the engine ends before.
func waitsForEver(ctx context.Context, e *sim.Engine) bool {
	_, err := e.WaitState(ctx, func(sim.State) bool { return e.HasStuckLoad() })
	return err == nil
}

// judge sends one request and returns its outcome.
func judge(ctx context.Context, d *server.Server, body map[string]any, want []int) outcome {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.URL+"/v1/completions", bytes.NewReader(pyjson.Encode(body)))
	if err != nil {
		return outcome(err.Error())
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return hangs
	}
	defer resp.Body.Close()
	var c simtest.Completion
	switch err := json.NewDecoder(resp.Body).Decode(&c); {
	case err != nil:
		return outcome(err.Error())
	case c.Error != nil && c.Error.Message == simtest.EngineDead:
		return dies
	case c.Error != nil && c.Error.Message == simtest.InternalError && resp.StatusCode == http.StatusInternalServerError:
		return fails
	case resp.StatusCode == http.StatusOK && slices.Equal(c.Tokens(), want):
		return right
	}
	return wrong
}
