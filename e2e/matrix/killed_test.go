package matrix

import (
	"context"
	"os"
	"testing"

	"github.com/tandem-serving/tandem/e2e/programs"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/stack"
)

// killings returns one failure for each state in which a sidecar is killed with SIGKILL: the states in which a client leaves.
func killings() (list []failure) {
	for _, s := range nixl.failures() {
		if s.action != leave {
			continue
		}
		if s.state == handedOff {
			s.lost = killed
		}
		list = append(list, s)
	}
	return list
}

// TestSidecarKilled checks what a killed sidecar leaves behind. Its client gets no answer, or a part of one that does not
// look complete; engines notice the closed connections; only a hand-off that no other component knows stays pinned until its
// lease expires.
func TestSidecarKilled(t *testing.T) {
	dir, err := programs.Build("sidecar")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, s := range killings() {
		for _, streamed := range []bool{false, true} {
			for _, api := range []pd.API{pd.APICompletions, pd.APIChat} {
				r := row{failure: s, situation: last, api: api, stream: streamed, keeper: none}
				t.Run(r.String(), func(t *testing.T) {
					t.Parallel()
					r.kill(t, dir)
				})
			}
		}
	}
}

// kill kills the sidecar once the request is in its state.
func (r row) kill(t *testing.T, dir string) {
	t.Helper()
	s := startEngines(t, r)
	s.addFaults(t, r)
	what, err := stack.Sidecar(dir, s.decode.addr())
	if err != nil {
		t.Fatal(err)
	}
	what.ReadyTimeout = testTimeout
	process, err := stack.Start(context.Background(), what)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = process.Kill() }) // it is dead, unless the test has failed before
	addr, err := process.Address("http")
	if err != nil {
		t.Fatal(err)
	}
	s.url = "http://" + addr
	a := ask(t, s, r)
	r.awaitState(t, s, a)
	if err := process.Kill(); err != nil {
		t.Fatal(err)
	}
	a.sendNoMore()
	if got := wait(t, a.ended, "the end of the connection"); got.err == nil {
		t.Errorf("the answer looks whole: %d %s", got.status, got.body)
	}
	a.hangUp()
	r.checkHeld(t, s)
	for _, e := range s.engines() {
		until(t, "every connection to be closed", e.listener.empty)
	}
}
