package doctor

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

func checkKVRole(ctx context.Context, f *fleet) finding {
	live := f.live()
	switch {
	case len(live) == 0:
		return noEngine("answers")
	case f.onlySGLang():
		return finding{} // checkModes compares their roles
	}
	return each(ctx, live, f.how.Timeout, func(_ context.Context, t *target) finding {
		role := t.info.Config.Transfer.Role
		switch {
		case !t.role.Has(pd.RolePrefill) && !t.role.Has(pd.RoleDecode):
			return finding{} // an encoder has no KV cache
		case role == "":
			return finding{verdict: unknown, seen: notShown}
		case t.role.Has(pd.RolePrefill) && role == "kv_consumer", t.role.Has(pd.RoleDecode) && role == "kv_producer":
			return finding{verdict: fail, seen: fmt.Sprintf("it is labelled %s and started as %s", t.role, role)}
		}
		return finding{verdict: ok, seen: role}
	})
}

// sideChannel is the address at which a prefill engine serves the metadata of its KV cache.
type sideChannel struct {
	of, address string
	trouble     string // why the address is unknown or cannot be right
	verdict     verdict
}

func (s sideChannel) String() string {
	if s.verdict != none || s.of == s.address {
		return s.of
	}
	return s.of + " at " + s.address
}

// defaultSidePort is vLLM's VLLM_NIXL_SIDE_CHANNEL_PORT.
const defaultSidePort = 5600

func checkSideChannel(ctx context.Context, f *fleet) finding {
	channels := f.sideChannels()
	if len(channels) == 0 && len(f.of(pd.RolePrefill)) > 0 {
		return finding{} // none of them has NIXL's connector
	}
	if len(channels) == 0 {
		return noEngine("that prefills answers")
	}
	if !f.reach.dials() {
		return finding{verdict: unknown, seen: "the API server's proxy passes only HTTP", do: "run the doctor in a pod of the cluster, or with --via direct"}
	}
	return each(ctx, channels, f.how.Timeout, func(ctx context.Context, s sideChannel) finding {
		switch s.verdict {
		case fail:
			return finding{verdict: fail, seen: s.trouble}
		case unknown:
			return finding{verdict: unknown, seen: s.trouble, do: "name them with --side-channel"}
		}
		return zmqGreets(ctx, s.address)
	})
}

// sideChannels returns the side channels that the flags name, or those of the prefill endpoints that answer.
func (f *fleet) sideChannels() (channels []sideChannel) {
	for _, address := range f.parts.Side {
		channels = append(channels, sideChannel{of: address, address: address})
	}
	if len(channels) > 0 {
		return channels
	}
	for _, t := range slices.DeleteFunc(f.of(pd.RolePrefill), f.withoutSideChannel) {
		s := sideChannel{of: t.name, address: netip.AddrPortFrom(t.addr.Addr(), defaultSidePort).String()}
		switch {
		case t.pod != nil:
			s = podSideChannel(t)
		case t.addr.Addr().IsLoopback():
			s.verdict, s.trouble = unknown, "the ports of engines on one machine cannot be guessed"
		}
		channels = append(channels, s)
	}
	return channels
}

// zmqGreets reports whether ZeroMQ listens there: it sends the first ten bytes of its greeting as soon as a client connects.
func zmqGreets(ctx context.Context, address string) finding {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return finding{verdict: fail, seen: cause(err).Error()}
	}
	defer conn.Close()
	var greeting [10]byte
	if deadline, set := ctx.Deadline(); set {
		_ = conn.SetDeadline(deadline) // of a TCP connection that is open
	}
	n, err := conn.Read(greeting[:])
	switch {
	case n > 0 && greeting[0] == 0xff:
		return finding{verdict: ok, seen: "answers"}
	case n > 0:
		return finding{verdict: fail, seen: "another service than a side channel answers"}
	case isTimeout(err):
		return finding{verdict: warn, seen: "accepts connections and sends nothing; a side channel sends a greeting"}
	}
	return finding{verdict: fail, seen: fmt.Sprintf("accepts connections and closes them: %v", cause(err))}
}

// pair is a prefill and a decode endpoint.
type pair struct{ prefill, decode *target }

func (p pair) String() string { return p.prefill.name + " → " + p.decode.name }

const (
	// mostProbes is the most requests that --probe sends.
	mostProbes = 32
	// probeTime bounds one probe: the first contact of two engines takes seconds when it fails.
	probeTime = 30 * time.Second
	// probePrompt is a short prompt; its text does not matter.
	probePrompt = "Tandem's doctor asks for one token."
)

func checkProbe(ctx context.Context, f *fleet) finding {
	if !f.how.Probe {
		return finding{verdict: unknown, seen: "not requested (--probe)"}
	}
	pairs := f.pairs()
	if len(pairs) == 0 {
		return noEngine("of one of the roles answers")
	}
	return each(ctx, pairs, probeTime, f.probe)
}

// pairs returns pairs that contain every endpoint of both roles at least once, but plain engines, which take part in no hand-off.
func (f *fleet) pairs() (pairs []pair) {
	plain := func(t *target) bool { return t.sg.mode == epp.EnginePlain }
	prefill, decode := slices.DeleteFunc(f.of(pd.RolePrefill), plain), slices.DeleteFunc(f.of(pd.RoleDecode), plain)
	if len(prefill) == 0 || len(decode) == 0 {
		return nil
	}
	for i := range min(mostProbes, max(len(prefill), len(decode))) {
		pairs = append(pairs, pair{prefill[i%len(prefill)], decode[i%len(decode)]})
	}
	return pairs
}

// probe does what a picker does: it names the prefill endpoint to the sidecar of the decode endpoint, and forces remote
// prefill.
func (f *fleet) probe(ctx context.Context, p pair) finding {
	if p.decode.modelsErr != nil {
		return finding{verdict: unknown, seen: "its model is unknown"}
	}
	body, err := json.Marshal(map[string]any{"model": p.decode.base().ID, "prompt": probePrompt, "max_tokens": 1, "temperature": 0})
	if err != nil {
		return finding{verdict: fail, seen: err.Error()}
	}
	a, err := f.engines().ask(ctx, http.MethodPost, f.base(p.decode)+pd.APICompletions.Path(), http.Header{
		"Content-Type":                              {"application/json"},
		http.CanonicalHeaderKey(pd.HeaderMode):      {"force"},
		http.CanonicalHeaderKey(pd.HeaderPrefill):   {p.prefill.addr.String()},
		http.CanonicalHeaderKey(pd.HeaderRequestID): {"tandem-doctor-" + randomID()},
	}, string(body))
	if err != nil {
		return finding{verdict: fail, seen: err.Error()}
	}
	decision := a.header.Get(pd.HeaderDecision)
	if a.status == http.StatusOK && strings.HasPrefix(decision, "remote;") {
		return finding{verdict: ok, seen: "prefilled remotely"}
	}
	if decision == "" {
		decision = "the answer has no header of a sidecar"
	}
	return finding{verdict: fail, seen: fmt.Sprintf("%d %s, %s", a.status, http.StatusText(a.status), decision)}
}

func randomID() string {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}
