package sglang_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/sim/sglang"
	"github.com/tandem-serving/tandem/sim/simtest"
)

// killed ends an engine as SIGKILL does.
func killed(e *simtest.SGLangEngine) { e.Close() }

// TestPrefillKilled: decode notices that prefill is gone by its heartbeats, and holds the pages of the leg until it gives up waiting
// for prefill's confirmation.
func TestPrefillKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newPair(t)
		x.works(t, 1)
		d := send(t, x.d, x.body(2))
		simtest.Elapse(t, time.Second)
		killed(x.p)
		r := d.wait()
		if want := "Lost connection with prefill instance (bootstrap_addr: " + x.p.Bootstrap + ")"; r.Status != http.StatusInternalServerError || !strings.Contains(string(r.Body), want) {
			t.Errorf("decode said %d %s, want %q", r.Status, r.Body, want)
		}
		if d.took < 5*time.Second || d.took > 11*time.Second {
			t.Errorf("it took %v, want two heartbeats", d.took)
		}
		if st := x.d.State(); st.Deferred != 1 || st.Blocks.Used != 63 {
			t.Errorf("decode holds %+v, want the pages of the leg", st)
		}
		simtest.Elapse(t, 30*time.Second)
		x.mustRestDecode(t)
		// A leg after that asks the closed port 15 times, once a second.
		send(t, x.d, x.body(3)).must(t, http.StatusInternalServerError, "Decode handshake failed", 14*time.Second)
		send(t, x.d, x.body(4, streamed)).must(t, http.StatusOK, `"status_code":500`, 14*time.Second)
	})
}

func (x *pair) mustRestDecode(t *testing.T) {
	t.Helper()
	synctest.Wait()
	if st := x.d.State(); !st.Idle() {
		t.Errorf("decode holds %+v", st)
	}
}

// TestPrefillRestarted: after a death that decode has noticed, pairs work again at once.
func TestPrefillRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newPair(t)
		x.works(t, 1)
		killed(x.p)
		simtest.Elapse(t, 11*time.Second)
		x.restartPrefill(t)
		x.works(t, 2)
	})
}

// restartPrefill starts a prefill engine on the address of the one that ended.
func (x *pair) restartPrefill(t *testing.T) {
	t.Helper()
	at, times := x.p.Bootstrap, x.p.Config().Times
	x.p = x.Start(t, sglang.Prefill, func(c *sglang.Config) { c.Bootstrap, c.Times = at, times })
}

// TestFastRestart: decode does not notice a restart between two heartbeats, and sends its pages to a port where no engine listens. A
// decode leg that runs into its time-out ends that; legs that end earlier do not.
func TestFastRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newPair(t, func(c *sglang.Config) { c.Times.Waiting, c.Times.Bootstrap = 20*time.Second, 20*time.Second })
		x.works(t, 1)
		killed(x.p)
		x.restartPrefill(t)
		for room := range uint64(5) {
			p, d := send(t, x.p, x.body(10+room)), send(t, x.d, x.body(10+room))
			simtest.Elapse(t, 6*time.Second)
			if p.answered() || d.answered() {
				t.Fatalf("pair %d: %s %s", room, p.reply.Body, d.reply.Body)
			}
			p.leave()
			d.leave()
			simtest.Elapse(t, 4*time.Second)
		}
		p, d := send(t, x.p, x.body(20)), send(t, x.d, x.body(20))
		p.must(t, http.StatusInternalServerError, "Bootstrapping", 20*time.Second)
		d.must(t, http.StatusInternalServerError, "WaitingForInput", 20*time.Second)
		x.works(t, 21)
	})
}

// TestDecodeKilled: prefill does not look for decode engines. Only a transfer shows that one is gone.
func TestDecodeKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newPair(t)
		x.works(t, 1)
		p := send(t, x.p, x.body(2))
		d := send(t, x.d, x.body(3))
		simtest.Elapse(t, time.Second)
		killed(x.d)
		send(t, x.p, x.body(3)).must(t, http.StatusInternalServerError, "NIXL_ERR_REMOTE_DISCONNECT", 0)
		p.must(t, http.StatusInternalServerError, "Bootstrapping", timeout)
		d.leave()
		x.d = x.Start(t, sglang.Decode)
		x.works(t, 4)
	})
}

// TestSilentBootstrapServer: decode asks an unknown bootstrap server in the thread of its scheduler, so all other requests stand still.
func TestSilentBootstrapServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newPair(t)
		x.works(t, 1)
		x.Silence(t, "elsewhere:9")
		body := x.body(2)
		body["bootstrap_host"], body["bootstrap_port"] = "elsewhere", 9
		hostile := send(t, x.d, body)
		simtest.Elapse(t, time.Second)
		victim := send(t, x.d, x.body(3))
		send(t, x.p, x.body(3))
		hostile.must(t, http.StatusInternalServerError, "Decode handshake failed", 75*time.Second)
		if victim.wait(); victim.took < 3*time.Second {
			t.Errorf("the other request took %v", victim.took)
		}
	})
}

// TestDeadlyRequests: a request that kills a scheduler leaves the ports of the engine open, without answers, for a while.
func TestDeadlyRequests(t *testing.T) {
	long, short := 65*time.Second, 5200*time.Millisecond
	for _, c := range []struct {
		name   string
		body   map[string]any
		deadly map[sglang.Mode]time.Duration
	}{
		{"negative", map[string]any{"bootstrap_room": -1}, map[sglang.Mode]time.Duration{sglang.Prefill: long}},
		{"no host", map[string]any{"bootstrap_host": nil}, map[sglang.Mode]time.Duration{sglang.Decode: short}},
		{"lists for one prompt", map[string]any{"bootstrap_host": []string{"memory"}, "bootstrap_room": []int{7}},
			map[sglang.Mode]time.Duration{sglang.Prefill: long, sglang.Decode: short}},
		{"an empty prompt in a batch", map[string]any{"input_ids": [][]int{{5}, {}}}, map[sglang.Mode]time.Duration{sglang.Prefill: long, sglang.Plain: long}},
		{"an unknown token", map[string]any{"input_ids": []int{5, 999999}},
			map[sglang.Mode]time.Duration{sglang.Prefill: long, sglang.Decode: short, sglang.Plain: long}},
	} {
		for _, mode := range []sglang.Mode{sglang.Plain, sglang.Prefill, sglang.Decode} {
			t.Run(c.name+", "+string(mode), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					x := newPair(t)
					e := map[sglang.Mode]*simtest.SGLangEngine{sglang.Plain: x.Start(t, sglang.Plain), sglang.Prefill: x.p, sglang.Decode: x.d}[mode]
					l := send(t, e, x.body(5, c.body))
					simtest.Elapse(t, time.Second)
					hang, deadly := c.deadly[mode]
					if died := e.Err() != nil; died != deadly {
						t.Fatalf("the engine's death is %v, want %v", e.Err(), deadly)
					}
					if !deadly {
						return
					}
					health := make(chan simtest.Reply)
					go func() { health <- e.Get(t.Context(), "/health") }()
					<-e.Done()
					if took := time.Since(l.began); took != hang {
						t.Errorf("the ports closed after %v, want %v", took, hang)
					}
					if r := <-health; r.Status != 0 || l.wait().Status != 0 {
						t.Errorf("health said %d, the request got %d", r.Status, l.reply.Status)
					}
				})
			})
		}
	}
}

// TestCrashedPrefill: the bootstrap server of an engine whose scheduler has died goes on, so decode takes the engine for healthy.
func TestCrashedPrefill(t *testing.T) {
	for name, c := range map[string]struct {
		hang  time.Duration
		cause string
	}{
		"it hangs":    {65 * time.Second, "WaitingForInput"},
		"it ends now": {time.Nanosecond, "Lost connection"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newPair(t, func(g *sglang.Config) { g.Times.Waiting, g.Times.CrashHang = 20*time.Second, c.hang })
				x.works(t, 1)
				d := send(t, x.d, x.body(2))
				simtest.Elapse(t, 100*time.Millisecond)
				send(t, x.p, x.body(3, map[string]any{"bootstrap_room": -3}))
				if r := d.wait(); r.Status != http.StatusInternalServerError || !strings.Contains(string(r.Body), c.cause) {
					t.Errorf("decode said %d %s, want %q", r.Status, r.Body, c.cause)
				}
				<-x.p.Done()
			})
		})
	}
}

// TestForeignPageSize: a decode engine dies of a bootstrap server that tells another page size.
func TestForeignPageSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newPair(t)
		x.p = x.Start(t, sglang.Prefill, func(c *sglang.Config) { c.PageSize = 32 })
		send(t, x.d, x.body(1))
		<-x.d.Done()
		if err := x.d.Err(); err == nil || !strings.Contains(err.Error(), "Page size mismatch") {
			t.Errorf("decode died of %v", err)
		}
	})
}

// TestFakeHost: with the host that the real engine's health checks name, neither engine needs the other. Decode then answers noise.
func TestFakeHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newPair(t)
		plain := x.Start(t, sglang.Plain)
		want := plain.Post(t.Context(), "/generate", simtest.Generate(prompt, 8)).Decoded(t).OutputIDs
		fake := map[string]any{"bootstrap_host": "2.2.2.2"}
		if got := x.p.Post(t.Context(), "/generate", x.body(1, fake)).Decoded(t).OutputIDs; !slices.Equal(got, want[:1]) {
			t.Errorf("prefill generated %v, want %v", got, want[:1])
		}
		a := x.d.Post(t.Context(), "/generate", x.body(2, fake)).Decoded(t).OutputIDs
		b := x.d.Post(t.Context(), "/generate", x.body(2, fake)).Decoded(t).OutputIDs
		if len(a) != 8 || slices.Equal(a, b) || slices.Equal(a, want) {
			t.Errorf("decode generated %v and %v of a prompt whose answer is %v", a, b, want)
		}
		x.mustRest(t)
	})
}

// TestOtherPrompt: nothing compares the prompts of two legs.
func TestOtherPrompt(t *testing.T) {
	for name, other := range map[string][]int{"other": simtest.Prompt(2, 1000), "shorter": simtest.Prompt(2, 300), "longer": simtest.Prompt(2, 2000)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newPair(t)
				plain := x.Start(t, sglang.Plain)
				mine, others := plain.Post(t.Context(), "/generate", simtest.Generate(prompt, 8)), plain.Post(t.Context(), "/generate", simtest.Generate(other, 8))
				body := x.body(1)
				body["input_ids"] = other
				send(t, x.p, body)
				got := send(t, x.d, x.body(1)).wait().Decoded(t).OutputIDs
				if slices.Equal(got, mine.Decoded(t).OutputIDs) {
					t.Error("decode has the right answer")
				}
				if name == "other" && !slices.Equal(got, others.Decoded(t).OutputIDs) {
					t.Errorf("decode generated %v, want the answer to the other prompt", got)
				}
				if n := x.d.State().ForeignReads; n != 1 {
					t.Errorf("%d foreign reads", n)
				}
			})
		})
	}
}

// TestAbortRequest: /abort_request ends every request whose id begins with the given one.
func TestAbortRequest(t *testing.T) {
	abort := func(e *simtest.SGLangEngine, body map[string]any) {
		if r := e.Post(t.Context(), "/abort_request", body); r.Status != http.StatusOK || len(r.Body) != 0 {
			t.Errorf("abort answered %d %q", r.Status, r.Body)
		}
	}
	t.Run("lone legs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			x := newPair(t)
			p, d := send(t, x.p, x.body(1, rid("mine-p"))), send(t, x.d, x.body(2, rid("mine-d")))
			simtest.Elapse(t, time.Second)
			for _, body := range []map[string]any{{}, {"rid": ""}, {"rid": "other"}} {
				abort(x.p, body)
				abort(x.d, body)
			}
			synctest.Wait()
			if p.answered() || d.answered() {
				t.Fatal("an abort that names no request ended one")
			}
			abort(x.p, rid("mine-p"))
			abort(x.d, rid("mine-d"))
			p.must(t, http.StatusInternalServerError, "Prefill bootstrap failed for request rank=0 req.rid='mine-p'", time.Second)
			d.must(t, http.StatusInternalServerError, "KVTransferError(bootstrap_room=2): Aborted by AbortReq.", time.Second)
			x.mustRest(t)
			send(t, x.p, x.body(2)).must(t, http.StatusInternalServerError, "Aborted by decode-side abort notification.", 0)
		})
	})
	t.Run("running", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			x := newPair(t)
			long := map[string]any{"sampling_params": map[string]any{"max_new_tokens": 2000, "ignore_eos": true}}
			legs := []*leg{send(t, x.d, x.body(1, long, rid("ab"))), send(t, x.d, x.body(2, long, rid("ab0xyz"), streamed)), send(t, x.d, x.body(3, long, rid("b")))}
			for room := range uint64(3) {
				send(t, x.p, x.body(room+1, long))
			}
			simtest.Elapse(t, time.Second)
			abort(x.d, rid("ab"))
			for _, l := range legs[:2] {
				l.must(t, http.StatusOK, `"finish_reason":{"type":"abort","message":"Aborted","status_code":null,"err_type":null}`, time.Second)
			}
			if !strings.HasSuffix(string(legs[1].reply.Body), "data: [DONE]\n\n") {
				t.Errorf("the stream ended with %q", legs[1].reply.Body[len(legs[1].reply.Body)-40:])
			}
			if legs[2].answered() {
				t.Error("a request with another id ended")
			}
			abort(x.d, map[string]any{"abort_all": true})
			legs[2].must(t, http.StatusOK, `"type":"abort"`, time.Second)
			x.mustRest(t)
		})
	})
}

// TestFullDecode: decode legs whose other legs do not come fill its pool, and a good pair waits behind them.
func TestFullDecode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newPair(t)
		lone := simtest.Prompt(3, 900)
		var legs []*leg
		for room := range uint64(24) {
			body := x.body(100 + room)
			body["input_ids"] = lone
			legs = append(legs, send(t, x.d, body))
		}
		simtest.Elapse(t, time.Second)
		if l := x.d.Loads()[0]; l.Transfer != 11 || l.Prealloc != 13 {
			t.Errorf("decode load %+v, want 11 legs with pages and 13 without", l)
		}
		p, d := send(t, x.p, x.body(1)), send(t, x.d, x.body(1))
		simtest.Elapse(t, time.Second)
		if p.answered() || d.answered() {
			t.Error("the pair found pages")
		}
		for _, l := range legs {
			l.leave()
		}
		d.must(t, http.StatusOK, "output_ids", 3*time.Second) // the next look at the clients
		p.must(t, http.StatusOK, "output_ids", 3*time.Second)
		x.mustRest(t)
	})
}

// TestDrain: an engine that got SIGTERM says that it is not ready, serves what comes, and ends when nothing is left.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newPair(t)
		x.works(t, 1)
		lone := send(t, x.d, x.body(2))
		simtest.Elapse(t, time.Second)
		drained := make(chan time.Duration)
		go func() {
			began := time.Now()
			x.d.Drain(t.Context())
			drained <- time.Since(began)
		}()
		synctest.Wait()
		for path, want := range map[string]int{"/health": 503, "/ready": 503, "/v1/models": 200} {
			if r := x.d.Get(t.Context(), path); r.Status != want {
				t.Errorf("%s is %d, want %d", path, r.Status, want)
			}
		}
		x.works(t, 3)
		send(t, x.p, x.body(2))
		lone.must(t, http.StatusOK, "output_ids", time.Second)
		if took := <-drained; took != 5*time.Second {
			t.Errorf("draining took %v, want the next look after the last request", took)
		}
		if x.d.Err() != nil {
			t.Errorf("the engine died of %v", x.d.Err())
		}
	})
}

// TestGauges: the page shows the last batch, and zeros after the last request.
func TestGauges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newPair(t)
		long := map[string]any{"sampling_params": map[string]any{"max_new_tokens": 1000, "ignore_eos": true}}
		d := send(t, x.d, x.body(1, long))
		p := send(t, x.p, x.body(1, long))
		p.wait()
		simtest.Elapse(t, time.Second)
		running := `num_running_reqs{engine_type="decode",model_name="tiny",moe_ep_rank="0",pp_rank="0",tp_rank="0"} `
		if page := string(x.d.MetricsPage()); !strings.Contains(page, running+"1.0") {
			t.Errorf("no request runs on the page:\n%s", page)
		}
		d.wait()
		for _, e := range []*simtest.SGLangEngine{x.p, x.d} {
			for line := range strings.Lines(string(e.MetricsPage())) {
				if (strings.HasPrefix(line, "sglang:num_used_tokens") || strings.Contains(line, "_reqs{")) && !strings.HasSuffix(line, " 0.0\n") {
					t.Errorf("after the last request: %s", line)
				}
			}
		}
	})
}
