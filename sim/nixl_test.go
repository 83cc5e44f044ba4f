//go:build nixl && cgo && linux

package sim

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/stack"
	"github.com/tandem-serving/tandem/transfer"
	"github.com/tandem-serving/tandem/transfer/nixl"
)

// realLibrary is the path of the NIXL library: the one that the environment names, or what make fetched.
func realLibrary(t *testing.T) string {
	t.Helper()
	library := stack.NIXLLibrary()
	switch {
	case library != "":
	case os.Getenv("CI") == "true":
		t.Fatal("the NIXL library is missing: make .tools/nixl")
	default:
		t.Skip("the NIXL library is missing: make .tools/nixl fetches it, or " + nixl.EnvLibrary + " names another")
	}
	return library
}

// overNIXL makes an engine's KV move by the real library. Of the means of transport, tls takes all if it is "".
func overNIXL(library, tls string) func(*Config) {
	return func(c *Config) {
		c.Transfer.Open = func(name string) (transfer.Transport, error) {
			return nixl.NewTransport(nixl.TransportConfig{
				Config: nixl.Config{Name: name, Library: library, TLS: tls}, Stall: NoStallTimeout})
		}
	}
}

func TestNIXLHandOff(t *testing.T) {
	library := realLibrary(t)
	for name, tls := range map[string]string{"all": "", "tcp": "tcp"} {
		t.Run(name, func(t *testing.T) {
			real := overNIXL(library, tls)
			p, d, plain := start(t, real), start(t, real), start(t)
			for _, n := range []int{1, 31, 32, 33, 100, 3000} {
				ids := prompt(n, n)
				want := complete(t, plain, ask(ids, 12, nil))
				got := complete(t, d, ask(ids, 12, prefill(t, p, ids)))
				if !slices.Equal(got.tokens(), want.tokens()) {
					t.Errorf("%d prompt tokens: decode generated %v, a plain engine %v", n, got.tokens(), want.tokens())
				}
			}
			given := settle(t, p, "the release of every hand-off", idle)
			read := settle(t, d, "the end of every request", idle)
			if read.ForeignReads != 0 || read.KVBytesRead == 0 || given.Released != 6 || given.Expired+given.StaleReads != 0 {
				t.Errorf("prefill state %+v, decode state %+v", given, read)
			}
			if page := metricsPage(t, d); !strings.Contains(page, `source="local_compute"} 0.0`) {
				t.Error("decode computed prompt tokens itself")
			}
		})
	}
}

// meetNIXL has an agent without memory meet an engine as a sidecar does: by the side channel that a hand-off names.
func meetNIXL(t *testing.T, agent *nixl.Agent, h map[string]any) transfer.Peer {
	t.Helper()
	metadata, err := AskSideChannel(t.Context(), joinAddress(h["remote_host"].(string), h["remote_port"].(json.Number).String()))
	if err != nil {
		t.Fatal(err)
	}
	peer, err := agent.Load(t.Context(), metadata)
	if err != nil {
		t.Fatal(err)
	}
	return peer
}

// TestNIXLThirdAgent: an agent of the real library without memory keeps a hand-off from running out, and gives one back.
func TestNIXLThirdAgent(t *testing.T) {
	library := realLibrary(t)
	p, d, plain := start(t, overNIXL(library, "")), start(t, overNIXL(library, "")), start(t)
	agent, err := nixl.New(nixl.Config{Name: "sidecar", Library: library})
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Close()
	ids := prompt(1, 100)
	held, given := prefill(t, p, ids), prefill(t, p, prompt(2, 100))
	peer := meetNIXL(t, agent, held)
	tell := func(message string) {
		t.Helper()
		if err := agent.Notify(t.Context(), peer, []byte(message)); err != nil {
			t.Fatal(err)
		}
	}
	name := func(h map[string]any) string { return h["remote_request_id"].(string) }
	tell(name(given) + ":1")
	settle(t, p, "the release", func(st State) bool { return st.Released == 1 && st.Blocks.Pinned == 4 })

	var near time.Time // the lease is made to end before its heartbeat's would
	p.Engine.call(func() {
		near = time.Now().Add(p.Engine.cfg.KV.Lease / 2)
		p.Engine.leases.open[name(held)].expires = near
	})
	tell("HB:" + name(held))
	settle(t, p, "the hold", func(State) bool { return p.Engine.leases.open[name(held)].expires.After(near) })

	got, want := complete(t, d, ask(ids, 12, held)), complete(t, plain, ask(ids, 12, nil))
	if !slices.Equal(got.tokens(), want.tokens()) {
		t.Errorf("decode generated %v, a plain engine %v", got.tokens(), want.tokens())
	}
	if st := settle(t, p, "the end of the other", idle); st.Released != 2 || st.Expired+st.StaleReads != 0 {
		t.Errorf("state %+v", st)
	}
}

// nixlProcess is a prefill engine in a process of its own.
type nixlProcess struct {
	*Server
	cmd *exec.Cmd
}

// The environment of TestNIXLProcess.
const (
	envNIXLEngine = "TANDEM_SIM_TEST_ENGINE" // its id
	envNIXLTLS    = "TANDEM_SIM_TEST_TLS"
)

// TestNIXLProcess is that process, and no test.
func TestNIXLProcess(t *testing.T) {
	id := os.Getenv(envNIXLEngine)
	if id == "" {
		return
	}
	c := Config{KV: KVConfig{Lease: time.Hour}, Transfer: TransferConfig{EngineID: id}}
	overNIXL(os.Getenv(nixl.EnvLibrary), os.Getenv(envNIXLTLS))(&c)
	s, err := Start(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(map[string]string{"URL": s.URL, "Admin": s.Admin}); err != nil {
		t.Fatal(err)
	}
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the test ends
	os.Exit(0)
}

// startNIXLProcess starts a prefill engine that can be stopped, and killed.
func startNIXLProcess(t *testing.T, library, tls, id string) *nixlProcess {
	t.Helper()
	p := &nixlProcess{cmd: exec.Command(os.Args[0], "-test.run=^TestNIXLProcess$")}
	p.cmd.Env = append(os.Environ(), envNIXLEngine+"="+id, envNIXLTLS+"="+tls, nixl.EnvLibrary+"="+library)
	p.cmd.Stderr = t.Output()
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); p.kill() })
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &p.Server)
	}
	if err != nil {
		t.Fatalf("the process said %q: %v", line, err)
	}
	return p
}

func (p *nixlProcess) kill() {
	_ = p.cmd.Process.Kill() // it may have been killed before
	_ = p.cmd.Wait()
}

func (p *nixlProcess) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// TestNIXLAbortedRead: a client leaves while the bytes of its KV are on the way from an engine that has stopped. The blocks
// stay with the transfer, and are free once it has ended.
func TestNIXLAbortedRead(t *testing.T) {
	library := realLibrary(t)
	p := startNIXLProcess(t, library, "tcp", "prefill")
	d, plain := start(t, overNIXL(library, "tcp")), start(t)
	complete(t, d, ask(prompt(1, 100), 4, prefill(t, p.Server, prompt(1, 100)))) // so that they have met
	ids := prompt(2, 3000)
	h := prefill(t, p.Server, ids)
	blocks := blocksFor(len(ids), d.Engine.cfg.KV.BlockSize)
	holding := func(st State) bool { return st.Blocks.Used == blocks }
	settle(t, d, "the end of the first request", idle)

	p.signal(t, syscall.SIGSTOP)
	leave(t, d, ask(ids, 4, h), holding)
	settle(t, d, "the client's leaving", func(State) bool { return allDone(d.Engine) })
	if st := d.Engine.State(); !holding(st) {
		t.Errorf("%+v: bytes may still land in %d blocks", st, blocks)
	}
	p.signal(t, syscall.SIGCONT)
	settle(t, d, "the end of the transfer", idle)

	got, want := complete(t, d, ask(ids, 12, prefill(t, p.Server, ids))), complete(t, plain, ask(ids, 12, nil))
	if !slices.Equal(got.tokens(), want.tokens()) {
		t.Errorf("decode generated %v after it, a plain engine %v", got.tokens(), want.tokens())
	}
}

// allDone reports, in the engine's loop, whether no request waits for any of its sequences.
func allDone(e *Engine) bool {
	for s := range e.live {
		if !s.done {
			return false
		}
	}
	return true
}

// TestNIXLRestart: a prefill engine dies and lives again under its name. What it had handed over is lost, and the next
// hand-off is read from its new life.
func TestNIXLRestart(t *testing.T) {
	library := realLibrary(t)
	first := startNIXLProcess(t, library, "", "prefill")
	d, plain := start(t, overNIXL(library, "")), start(t)
	ids := prompt(1, 100)
	complete(t, d, ask(ids, 4, prefill(t, first.Server, ids)))
	do(t, http.MethodPost, d.URL+"/reset_prefix_cache", "")
	lost := prefill(t, first.Server, ids)
	first.kill()
	second := startNIXLProcess(t, library, "", "prefill")
	if r := post(t, d.URL+"/v1/completions", ask(ids, 4, lost)); r.status != http.StatusInternalServerError {
		t.Errorf("KV of a dead engine: status %d: %s", r.status, r.body)
	}
	got, want := complete(t, d, ask(ids, 12, prefill(t, second.Server, ids))), complete(t, plain, ask(ids, 12, nil))
	if !slices.Equal(got.tokens(), want.tokens()) {
		t.Errorf("decode generated %v, a plain engine %v", got.tokens(), want.tokens())
	}
	if st := settle(t, d, "the end of every request", idle); st.ForeignReads != 0 {
		t.Errorf("state %+v", st)
	}
}
