package matrix

import (
	"context"
	"maps"
	"net"
	"slices"
	"strconv"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/sidecar"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/server"
)

// vLLM's protocol with MoRIIOConnector, of which decode reads or prefill writes, with legs one after the other. No real engine of it runs
// without AMD's GPUs.
var (
	moriioRead = &protocol{name: "moriio-read", dialect: moriioDialect(dialect.MoRIIO{}), text: "testdata/moriio-read.txt", head: moriioReadHead,
		list: moriioFailures, effects: moriioReadEffects(), ways: ways, start: startMoRIIO(sim.MoRIIORead), configure: configureMoRIIO(false), apis: moriioAPIs, firstEvents: firstEvents}
	moriioWritten = &protocol{name: "moriio-write", tested: true, dialect: moriioDialect(dialect.MoRIIO{Write: true}), text: "testdata/moriio-write.txt", head: moriioWriteHead,
		list: moriioWriteFailures, effects: effects, ways: ways, start: startMoRIIO(sim.MoRIIOWrite), configure: configureMoRIIO(true), apis: moriioAPIs, firstEvents: firstEvents}
)

var moriioAPIs = []pd.API{pd.APICompletions, pd.APIChat}

// moriioDialect is a dialect of these engines as the tables need it, for its shape.
func moriioDialect(o dialect.MoRIIO) dialect.Dialect {
	d, _ := dialect.New("moriio", dialect.Options{MoRIIO: o, Lease: lease})
	return d
}

// configureMoRIIO tells the sidecar where its engines are.
func configureMoRIIO(write bool) func(*sidecar.Config, *fixture) {
	return func(cfg *sidecar.Config, _ *fixture) {
		cfg.Engine.Dialect, cfg.Engine.Connector = nil, "moriio"
		cfg.MoRIIO.Write, cfg.MoRIIO.Local = write, cfg.Engine.Host
	}
}

// startMoRIIO serves an engine until the test ends, or the test closes it. Each has an address of its own, and the usual ports.
func startMoRIIO(mode sim.MoRIIOMode) func(t *testing.T, r row, role pd.Role) *engine {
	return func(t *testing.T, r row, role pd.Role) *engine {
		t.Helper()
		data, admin := listen(t)
		host, _, err := net.SplitHostPort(data.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		cfg := sim.Config{MaxModelLen: 512, ScaleOut: true, KV: sim.KVConfig{Blocks: 40, Lease: lease}}
		if role != pd.RolePrefill|pd.RoleDecode {
			cfg.KV.MoRIIO = sim.MoRIIOConfig{Mode: mode, Producer: role == pd.RolePrefill, Notify: net.JoinHostPort(host, strconv.Itoa(dialect.MoRIIONotifyPort))}
			cfg.Transfer.SideChannel = net.JoinHostPort(host, strconv.Itoa(dialect.MoRIIOHandshakePort))
			if r.action == kill {
				cfg.KV.HandshakeTimeout = briefly
			}
		}
		s, err := server.Serve(cfg, data, admin)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		of := func(st sim.State) load {
			return load{requests: st.Requests, held: st.Held, used: st.Blocks.Used, pinned: st.Blocks.Pinned,
				read: st.KVBytesRead, foreign: st.ForeignReads, expired: st.Expired, stale: st.StaleReads}
		}
		return &engine{s.URL, s.Faults, s.Handler, s.Close, s.Engine.Done(), func() load { return of(s.Engine.State()) },
			func(ctx context.Context, ok func(load) bool) (load, error) {
				st, err := s.Engine.WaitState(ctx, func(st sim.State) bool { return ok(of(st)) })
				return of(st), err
			}, data}
	}
}

// moriioDamages are those of a hand-off that the sidecar sees.
func moriioDamages() (list []failure) {
	for _, name := range []string{"missing-engine-id", "missing-blocks", "null-blocks", "empty-blocks", "empty-group", "flat-blocks", "string-blocks", "flag-false", "string", "list", "empty"} {
		list = append(list, failure{name: "bad-handoff " + name, prefill: onPrefill("bad-handoff", name), effect: candidateFails, reason: pd.HandoffInvalid, cause: "invalid", lost: unfit})
	}
	return list
}

// moriioFailures are those of legs that are sent one after the other. The sidecar tells prefill nothing itself.
func moriioFailures() []failure {
	list := withoutNotices(slices.Concat(
		in(received, bodyFailures),
		in(prefilling, without("stale", prefillFailures), moriioDamages()),
		in(handedOff, without("hand-off too old", handoffFailures)),
		in(beforeHeaders, without("prefill stands still", headerFailures)),
		in(beforeEvent, eventFailures),
		in(streaming, streamFailures),
	))
	for i := range list {
		s := &list[i]
		s.either = true
		switch {
		case s.state == streaming:
			s.form = stream // of a whole answer the client has nothing before the sidecar has all
		case s.state == beforeHeaders && s.action == outwait:
			s.lost = decodeSilent
		case s.state == beforeHeaders && s.status == 503: // decode tells prefill that it has not admitted the request
			s.release = notReleased
		case s.action == kill: // which the sidecar notices before decode does
			s.cause = "gone"
		}
	}
	return list
}

// moriioWriteFailures are the same for a decode engine that is written to: it waits for the write, whether a client does or not.
func moriioWriteFailures() []failure {
	list := moriioFailures()
	for i := range list {
		s := &list[i]
		s.decodeKeeps = s.action == kill
		if (s.decode.Fault == "refuse" || s.decode.Fault == "reset-before") && s.effect == transferFails {
			s.lost = maybeRead
		}
	}
	return list
}

// moriioReadEffects are those of a decode engine that computes no prompts.
func moriioReadEffects() map[effect][situations]outcome {
	m := maps.Clone(effects)
	computesNone := func(decodes int) outcome {
		return outcome{503, "refused;reason=decode-only;attempts=1;candidate=0", refusal, decodes}
	}
	m[candidateFails] = [situations]outcome{another: m[candidateFails][another], last: computesNone(0), forced: forbidden(0), budgetEmpty: computesNone(0)}
	m[transferFails] = [situations]outcome{another: computesNone(1), last: computesNone(1), forced: forbidden(1), budgetEmpty: computesNone(1)}
	return m
}

const moriioReadHead = `What a client gets from vLLM's engines with MoRIIOConnector and read_mode, as matrix.txt shows it for NixlConnector.

Each case holds for streams and whole answers, for chat and completions, unless it says otherwise. The engines are simulated. Decode computes
no prompts. The sidecar has decode tell prefill of each hand-off that is not used [by decode].
`

const moriioWriteHead = `What a client gets from vLLM's engines with MoRIIOConnector, of which prefill writes, as matrix.txt shows it for NixlConnector.

Each case holds for streams and whole answers, for chat and completions, unless it says otherwise. The engines are simulated, and the legs are
sent one after the other. The sidecar has decode tell prefill of each hand-off that is not used [by decode]. A decode engine keeps the blocks
of a leg whose prefill engine has ended before it has written to them.
`

// ofMoRIIO returns the row if it is run: with half of the forms and APIs, in two situations.
func (r row) ofMoRIIO() []row {
	if r.situation > last || r.stream == (r.api == pd.APIChat) || r.situation != last && r.quick {
		return nil
	}
	r.keeper = none
	return []row{r}
}
