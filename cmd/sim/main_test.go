package main

import (
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/internal/boottest"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/sim/sglang"
)

func TestMain(m *testing.M) {
	boottest.Main(m, map[string]func(){"sim": func() { boot.Main(run) }})
}

func TestScripts(t *testing.T) { boottest.Scripts(t) }

// TestFlagsReachTheEngine: every flag sets its value in the engine's configuration.
func TestFlagsReachTheEngine(t *testing.T) {
	f := defaults()
	_, err := program.Load(boot.IO{Name: "sim"}, &f, []string{
		"--model=llama-3.1-8b-h100", "--served-model-name=llama", "--max-model-len=300", "--time-scale=0.5", "--max-num-batched-tokens=100",
		"--max-num-seqs=3", "--max-num-queued-reqs=4", "--blocks=21", "--host-blocks=33", "--block-size=16", "--kv-lease=9s", "--kv-load-failure-policy=recompute",
		"--no-prefill-cached-tokens", "--keep-alive=7s", "--host=127.0.0.2", "--enable-scale-out",
		"--kv-events-address=127.0.0.1:1", "--kv-events-replay-address=127.0.0.1:2", "--kv-events-topic=kv@",
	})
	if err != nil {
		t.Fatal(err)
	}
	got := f.config()
	want := sim.Config{
		ServedModelName: "llama", ScaleOut: true, MaxModelLen: 300, TimeScale: 0.5, KeepAlive: f.Listen.KeepAlive,
		Schedule: sim.ScheduleConfig{MaxBatchedTokens: 100, MaxSequences: 3, MaxQueuedRequests: 4},
		KV:       sim.KVConfig{Blocks: 21, HostBlocks: 33, BlockSize: 16, Lease: f.KV.Lease, LoadFailure: sim.RecomputeLoad, OmitPrefillCachedTokens: true},
		Transfer: sim.TransferConfig{SideChannel: "127.0.0.2:0"},
		Events:   sim.EventsConfig{Publish: "127.0.0.1:1", Replay: "127.0.0.1:2", Topic: "kv@"},
	}
	if got.Model.Name != "llama-3.1-8b-h100" || f.KV.Lease.Seconds() != 9 || f.Listen.KeepAlive.Seconds() != 7 {
		t.Errorf("model %s, lease %v, keep-alive %v", got.Model.Name, f.KV.Lease, f.Listen.KeepAlive)
	}
	if got.Model = want.Model; got.Schedule != want.Schedule || got.KV != want.KV || got.ServedModelName != want.ServedModelName || got.ScaleOut != want.ScaleOut ||
		got.MaxModelLen != want.MaxModelLen || got.TimeScale != want.TimeScale || got.KeepAlive != want.KeepAlive || got.Transfer.SideChannel != want.Transfer.SideChannel || got.Events != want.Events {
		t.Errorf("config %+v\nwant   %+v", got, want)
	}
}

// TestSGLangFlagsReachTheEngine: every flag of SGLang sets its value in the engine's configuration.
func TestSGLangFlagsReachTheEngine(t *testing.T) {
	f := defaults()
	_, err := program.Load(boot.IO{Name: "sim"}, &f, []string{
		"--engine=sglang", "--host=127.0.0.2", "--served-model-name=llama", "--time-scale=0.5", "--keep-alive=7s", "--disaggregation-mode=decode",
		"--disaggregation-bootstrap-port=9000", "--page-size=32", "--dp-size=2", "--context-length=300", "--max-total-tokens=640",
		"--max-running-requests=3", "--chunked-prefill-size=100", "--disaggregation-decode-enable-radix-cache",
		"--disaggregation-bootstrap-timeout=1s", "--disaggregation-waiting-timeout=2s", "--disaggregation-heartbeat-interval=3s",
		"--disaggregation-heartbeat-max-failure=4", "--disaggregation-deferred-release-timeout=5s", "--request-state-wait-timeout=6s",
		"--crash-hang=8s", "--health-time=9s",
	})
	if err != nil {
		t.Fatal(err)
	}
	got := f.sglangConfig()
	got.Model = model.Model{}
	want := sglang.Config{
		ServedModelName: "llama", Mode: sglang.Decode, Bootstrap: "127.0.0.2:9000", ContextLength: 300, PageSize: 32, MaxTotalTokens: 640,
		MaxRunningRequests: 3, ChunkedPrefillSize: 100, Ranks: 2, DecodeRadixCache: true, TimeScale: 0.5,
		Times: sglang.Times{Bootstrap: time.Second, Waiting: 2 * time.Second, Heartbeat: 3 * time.Second, HeartbeatFailures: 4, Release: 5 * time.Second,
			Poll: 6 * time.Second, CrashHang: 8 * time.Second, Health: 9 * time.Second, KeepAlive: 7 * time.Second},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("config %+v\nwant   %+v", got, want)
	}
}

// TestDeathIsExitOne: the program ends with its engine, and prints the cause.
func TestDeathIsExitOne(t *testing.T) {
	out, ready := io.Pipe()
	var stderr strings.Builder
	code := make(chan int, 1)
	go func() {
		std := boot.IO{Name: "sim", Stdout: ready, Stderr: &stderr}
		code <- boot.Run(t.Context(), std, []string{"--port=0", "--admin-port=0", "--time-scale=0"}, run)
		ready.Close()
	}()
	var line struct{ Addresses struct{ HTTP string } }
	if err := json.NewDecoder(out).Decode(&line); err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, out) // until the program closes it
	body := `{"prompt":"a","max_tokens":1,"kv_transfer_params":{"do_remote_prefill":true}}`
	resp, err := http.Post("http://"+line.Addresses.HTTP+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusInternalServerError {
		t.Errorf("status %d", resp.StatusCode)
	}
	if got := <-code; got != boot.CodeFailed || !strings.Contains(stderr.String(), "sim: running the engine: ") {
		t.Errorf("exit code %d, stderr %q", got, stderr.String())
	}
	http.DefaultClient.CloseIdleConnections()
}
