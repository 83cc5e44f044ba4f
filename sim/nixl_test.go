//go:build nixl && cgo && linux

package sim_test

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

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/kv"
	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/sim/simtest"
	"github.com/tandem-serving/tandem/transfer"
	"github.com/tandem-serving/tandem/transfer/nixl"
	"github.com/tandem-serving/tandem/transfer/transfertest"
)

// overNIXL makes an engine move its KV by the real library. tls are the UCX transports that it may use; "" for all.
func overNIXL(library, tls string) func(*sim.Config) {
	return func(c *sim.Config) {
		c.Transfer.Open = func(name string) (transfer.Transport, error) {
			return nixl.NewTransport(nixl.TransportConfig{
				Config: nixl.Config{Name: name, Library: library, TLS: tls}, Stall: sim.NoStallTimeout})
		}
	}
}

func TestNIXLHandOff(t *testing.T) {
	library := transfertest.NIXLLibrary(t)
	for name, tls := range map[string]string{"all": "", "tcp": "tcp"} {
		t.Run(name, func(t *testing.T) {
			real := overNIXL(library, tls)
			p, d, plain := simtest.Start(t, real), simtest.Start(t, real), simtest.Start(t)
			for _, n := range []int{1, 31, 32, 33, 100, 3000} {
				ids := simtest.Prompt(n, n)
				want := simtest.Complete(t, plain, simtest.Greedy(ids, 12, nil))
				got := simtest.Complete(t, d, simtest.Greedy(ids, 12, simtest.Prefill(t, p, ids)))
				if !slices.Equal(got.Tokens(), want.Tokens()) {
					t.Errorf("%d prompt tokens: decode generated %v, a plain engine %v", n, got.Tokens(), want.Tokens())
				}
			}
			given := simtest.WaitForState(t, p, "the release of every hand-off", simtest.Idle)
			read := simtest.WaitForState(t, d, "the end of every request", simtest.Idle)
			if read.ForeignReads != 0 || read.KVBytesRead == 0 || given.Released != 6 || given.Expired+given.StaleReads != 0 {
				t.Errorf("prefill state %+v, decode state %+v", given, read)
			}
			if page := simtest.MetricsPage(t, d); !strings.Contains(page, `source="local_compute"} 0.0`) {
				t.Error("decode computed prompt tokens itself")
			}
		})
	}
}

// meetNIXL connects an agent without memory to an engine as a sidecar does: by the side channel that a hand-off names.
func meetNIXL(t *testing.T, agent *nixl.Agent, h map[string]any) transfer.Peer {
	t.Helper()
	metadata, err := sim.AskSideChannel(t.Context(), sim.JoinAddress(h["remote_host"].(string), h["remote_port"].(json.Number).String()))
	if err != nil {
		t.Fatal(err)
	}
	peer, err := agent.Load(t.Context(), metadata)
	if err != nil {
		t.Fatal(err)
	}
	return peer
}

// TestNIXLThirdAgent: an agent of the real library without memory renews a hand-off, and releases another.
func TestNIXLThirdAgent(t *testing.T) {
	library := transfertest.NIXLLibrary(t)
	p, d, plain := simtest.Start(t, overNIXL(library, "")), simtest.Start(t, overNIXL(library, "")), simtest.Start(t)
	agent, err := nixl.New(nixl.Config{Name: "sidecar", Library: library})
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Close()
	ids := simtest.Prompt(1, 100)
	held, released := simtest.Prefill(t, p, ids), simtest.Prefill(t, p, simtest.Prompt(2, 100))
	peer := meetNIXL(t, agent, held)
	tell := func(message string) {
		t.Helper()
		if err := agent.Notify(t.Context(), peer, []byte(message)); err != nil {
			t.Fatal(err)
		}
	}
	name := func(h map[string]any) string { return h["remote_request_id"].(string) }
	tell(name(released) + ":1")
	simtest.WaitForState(t, p, "the release", func(st sim.State) bool { return st.Released == 1 && st.Blocks.Pinned == 4 })

	near := p.Engine.HalveLease(name(held)) // so that it ends before its heartbeat's would
	tell("HB:" + name(held))
	simtest.WaitForState(t, p, "the hold", func(sim.State) bool { return p.Engine.LeaseEnd(name(held)).After(near) })

	got, want := simtest.Complete(t, d, simtest.Greedy(ids, 12, held)), simtest.Complete(t, plain, simtest.Greedy(ids, 12, nil))
	if !slices.Equal(got.Tokens(), want.Tokens()) {
		t.Errorf("decode generated %v, a plain engine %v", got.Tokens(), want.Tokens())
	}
	if st := simtest.WaitForState(t, p, "the end of the other", simtest.Idle); st.Released != 2 || st.Expired+st.StaleReads != 0 {
		t.Errorf("state %+v", st)
	}
}

// nixlProcess is a prefill engine in a process of its own.
type nixlProcess struct {
	*server.Server
	cmd *exec.Cmd
}

// The environment of TestNIXLProcess.
const (
	envNIXLEngine = "TANDEM_SIM_TEST_ENGINE" // its id
	envNIXLTLS    = "TANDEM_SIM_TEST_TLS"
)

// TestNIXLProcess is the prefill engine of startNIXLProcess, and not a test by itself.
func TestNIXLProcess(t *testing.T) {
	id := os.Getenv(envNIXLEngine)
	if id == "" {
		return
	}
	c := sim.Config{KV: sim.KVConfig{Lease: time.Hour}, Transfer: sim.TransferConfig{EngineID: id}}
	overNIXL(os.Getenv(nixl.EnvLibrary), os.Getenv(envNIXLTLS))(&c)
	s, err := server.Start(c)
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

// TestNIXLAbortedRead: a client leaves during the transfer of its KV from an engine whose process is stopped. The blocks stay in
// use until the transfer has ended.
func TestNIXLAbortedRead(t *testing.T) {
	library := transfertest.NIXLLibrary(t)
	p := startNIXLProcess(t, library, "tcp", "prefill")
	d, plain := simtest.Start(t, overNIXL(library, "tcp")), simtest.Start(t)
	simtest.Complete(t, d, simtest.Greedy(simtest.Prompt(1, 100), 4, simtest.Prefill(t, p.Server, simtest.Prompt(1, 100)))) // so that they have met
	ids := simtest.Prompt(2, 3000)
	h := simtest.Prefill(t, p.Server, ids)
	blocks := kv.BlocksFor(len(ids), d.Engine.Config().KV.BlockSize)
	holding := func(st sim.State) bool { return st.Blocks.Used == blocks }
	simtest.WaitForState(t, d, "the end of the first request", simtest.Idle)

	p.signal(t, syscall.SIGSTOP)
	simtest.Leave(t, d, simtest.Greedy(ids, 4, h), holding)
	simtest.WaitForState(t, d, "the client's leaving", func(sim.State) bool { return d.Engine.AllDone() })
	if st := d.Engine.State(); !holding(st) {
		t.Errorf("%+v: bytes may still land in %d blocks", st, blocks)
	}
	p.signal(t, syscall.SIGCONT)
	simtest.WaitForState(t, d, "the end of the transfer", simtest.Idle)

	got, want := simtest.Complete(t, d, simtest.Greedy(ids, 12, simtest.Prefill(t, p.Server, ids))), simtest.Complete(t, plain, simtest.Greedy(ids, 12, nil))
	if !slices.Equal(got.Tokens(), want.Tokens()) {
		t.Errorf("decode generated %v after it, a plain engine %v", got.Tokens(), want.Tokens())
	}
}

// TestNIXLRestart: a prefill engine is killed and started again under its name. Its old hand-offs are lost, and the next one is
// read from the new process.
func TestNIXLRestart(t *testing.T) {
	library := transfertest.NIXLLibrary(t)
	first := startNIXLProcess(t, library, "", "prefill")
	d, plain := simtest.Start(t, overNIXL(library, "")), simtest.Start(t)
	ids := simtest.Prompt(1, 100)
	simtest.Complete(t, d, simtest.Greedy(ids, 4, simtest.Prefill(t, first.Server, ids)))
	simtest.Do(t, http.MethodPost, d.URL+"/reset_prefix_cache", "")
	lost := simtest.Prefill(t, first.Server, ids)
	first.kill()
	second := startNIXLProcess(t, library, "", "prefill")
	if r := simtest.Post(t, d.URL+"/v1/completions", simtest.Greedy(ids, 4, lost)); r.Status != http.StatusInternalServerError {
		t.Errorf("KV of a dead engine: status %d: %s", r.Status, r.Body)
	}
	got, want := simtest.Complete(t, d, simtest.Greedy(ids, 12, simtest.Prefill(t, second.Server, ids))), simtest.Complete(t, plain, simtest.Greedy(ids, 12, nil))
	if !slices.Equal(got.Tokens(), want.Tokens()) {
		t.Errorf("decode generated %v, a plain engine %v", got.Tokens(), want.Tokens())
	}
	if st := simtest.WaitForState(t, d, "the end of every request", simtest.Idle); st.ForeignReads != 0 {
		t.Errorf("state %+v", st)
	}
}
