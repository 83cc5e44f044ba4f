package sidecar

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/sim/sglang"
	"github.com/tandem-serving/tandem/sim/simtest"
)

// A prefill engine is started anew, and decode does not notice: it sends its pages to where the engine was before. The sidecar finds
// out, has decode forget that, and sends no request there meanwhile.
func TestSGLangPrefillRestarted(t *testing.T) {
	t.Parallel()
	patient := func(c *sglang.Config) {
		c.Times.Heartbeat, c.Times.Bootstrap = time.Hour, time.Hour // decode does not notice by itself
		c.Times.Waiting = 6 * time.Second
	}
	prefill := simtest.SGLang(t, sglang.Prefill, patient)
	decode := simtest.SGLang(t, sglang.Decode, patient)
	s := startRig(t, strings.TrimPrefix(decode.URL, "http://"), speaksSGLang)
	at := strings.TrimPrefix(prefill.URL, "http://")
	ask := func() reply { return post(t, s.url+completionsPath, simAsk(100, 4, false), pd.HeaderPrefill, at) }
	if r := ask(); r.status != http.StatusOK {
		t.Fatalf("before the restart: %d %s", r.status, r.body)
	}

	bootstrap := prefill.Bootstrap
	prefill.Close()
	restart(t, at, bootstrap, patient)
	ask().mustRefuse(t, http.StatusServiceUnavailable, pd.DecodeOnly)
	s.mustCount(t, 1, "tandem_retries_total", "leg", "prefill", "cause", "misrouted")
	ask().mustRefuse(t, http.StatusServiceUnavailable, pd.DecodeOnly)
	s.mustCount(t, 1, "tandem_retries_total", "leg", "prefill", "cause", "misrouted") // the pod was not tried
	simtest.WaitForSGLang(t, decode, "the leg that has decode forget", func(st sglang.State) bool { return st.Transfer == 1 })
	simtest.WaitForSGLang(t, decode, "decode to give up", func(st sglang.State) bool { return st.Transfer == 0 })
	pace := time.NewTicker(20 * time.Millisecond) // without one, the connections of thousands of requests are open at a time
	defer pace.Stop()
	for began := time.Now(); ; <-pace.C {
		r := ask()
		if r.status == http.StatusOK {
			return
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("after decode has forgotten: %d %s", r.status, r.body)
		}
	}
}

// restart runs a prefill engine at the addresses of one that has ended.
func restart(t *testing.T, at, bootstrap string, change func(*sglang.Config)) {
	t.Helper()
	cfg := sglang.Config{Mode: sglang.Prefill, Bootstrap: bootstrap}
	change(&cfg)
	data, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	admin, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.ServeSGLang(cfg, data, admin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
}
