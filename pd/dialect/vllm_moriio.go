package dialect

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/request"
)

// The ports of engines with vLLM's MoRIIOConnector, unless their configuration says otherwise (handshake_port, notify_port).
const (
	MoRIIOHandshakePort = 6301
	MoRIIONotifyPort    = 61005
)

// MoRIIO describes a pair of engines with vLLM's MoRIIOConnector. The zero value is for callers that send nothing.
type MoRIIO struct {
	// Write says that prefill engines write the KV cache into decode engines, as they do by default. Otherwise decode engines read it
	// (read_mode).
	Write bool
	// Parallel sends both legs at once. It needs Write.
	Parallel bool
	// Local is the address or name of the decode engine's pod, to which prefill engines write.
	Local string
	// Decode and Prefill are the ports of the engines of one role; a data-parallel rank has those of its number above them.
	Decode, Prefill MoRIIOPorts
	// Tensor and Data are the numbers of ranks of the engines, tensor-parallel and data-parallel. LocalData is how many of the latter one
	// pod has, 0 if it has all.
	Tensor, Data, LocalData int
	// PrefillHosts and DecodeHosts are the addresses or names of the pods over which the data-parallel ranks of an engine are spread, in
	// the order of the ranks; nil if one pod has all.
	PrefillHosts, DecodeHosts []string
	// Resolve returns the address of a name; it returns addresses as they are. It may be nil if all are addresses.
	Resolve func(ctx context.Context, host string) (address string, err error)
}

// MoRIIOPorts are the ports at which other engines reach one.
type MoRIIOPorts struct{ Handshake, Notify int }

// vllmMoRIIO is the serial protocol of vLLM's MoRIIOConnector, which moves KV caches by AMD's RDMA library. Prefill computes one token and
// keeps its blocks. If it writes, decode names its own blocks to prefill; else decode reads those that prefill's answer names. The legs are
// the same in both modes: a prefill engine that writes ends if its leg does not say where decode is, and one that is read from ignores
// it. By the source of vLLM 0.32.0; no engine of it runs without AMD's GPUs.
type vllmMoRIIO struct {
	vllmEngine
	o         MoRIIO
	blockSize int
	sizes     blockSizes // while blockSize is 0
	trust     time.Duration
}

// vllmMoRIIOParallel is the same with both legs at once: decode has named its blocks when prefill has computed them. What decode is told of
// prefill are settings. A decode engine whose prefill leg fails keeps the blocks of its own until it is restarted.
type vllmMoRIIOParallel struct{ vllmMoRIIO }

func newVLLMMoRIIO(o Options) Dialect {
	if o.MoRIIO.Resolve == nil {
		o.MoRIIO.Resolve = func(_ context.Context, host string) (string, error) { return host, nil }
	}
	if o.MoRIIO.Parallel {
		return &vllmMoRIIOParallel{vllmMoRIIO{o: o.MoRIIO}}
	}
	return &vllmMoRIIO{o: o.MoRIIO, blockSize: o.BlockSize, trust: o.Lease * 2 / 3}
}

// Shape implements Dialect.
func (*vllmMoRIIO) Shape() Shape { return Serial }

// Shape implements Dialect.
func (*vllmMoRIIOParallel) Shape() Shape { return Concurrent }

// Attempt implements Dialect.
func (d *vllmMoRIIO) Attempt(ctx context.Context, r *request.Request, prefill pd.Target) (Attempt, error) {
	a, err := d.attempt(ctx, r, prefill)
	if err != nil {
		return nil, err
	}
	if d.o.Write {
		return &moriioWriteAttempt{moriioAttempt{moriioLegs: a}}, nil
	}
	return &moriioAttempt{moriioLegs: a}, nil
}

// Attempt implements Dialect.
func (d *vllmMoRIIOParallel) Attempt(ctx context.Context, r *request.Request, prefill pd.Target) (Attempt, error) {
	a, err := d.attempt(ctx, r, prefill)
	if err != nil {
		return nil, err
	}
	return &moriioParallelAttempt{a}, nil
}

// attempt resolves the pods of both engines. A prefill engine keeps blocks of a transfer that is named twice, so each attempt has a new one.
func (d *vllmMoRIIO) attempt(ctx context.Context, r *request.Request, prefill pd.Target) (moriioLegs, error) {
	a := moriioLegs{dialect: d, request: r, api: r.API, prefill: prefill, transfer: "tx" + rand.Text(), rank: noRank, cached: -1}
	var err error
	if a.local, err = d.o.Resolve(ctx, d.o.Local); err != nil {
		return a, fmt.Errorf("resolving the decode pod's own name: %w", err)
	}
	if a.prefillHosts, err = d.resolve(ctx, d.o.PrefillHosts); err != nil {
		return a, fmt.Errorf("resolving the pods of the prefill engine: %w", err)
	}
	if a.decodeHosts, err = d.resolve(ctx, d.o.DecodeHosts); err != nil {
		return a, fmt.Errorf("resolving the pods of the decode engine: %w", err)
	}
	if d.o.Data > 1 {
		a.rank = mathrand.IntN(d.o.Data)
	}
	return a, nil
}

func (d *vllmMoRIIO) resolve(ctx context.Context, hosts []string) ([]string, error) {
	addresses := make([]string, len(hosts))
	for i, host := range hosts {
		var err error
		if addresses[i], err = d.o.Resolve(ctx, host); err != nil {
			return nil, err
		}
	}
	return addresses, nil
}

// StripsHeader implements HeaderStripper: the rank is the attempt's.
func (*vllmMoRIIO) StripsHeader(name string) bool { return name == rankHeader }

// Controls implements Controller: what may end the prefill leg by its first token.
func (*vllmMoRIIO) Controls() []string { return limitControls }

// ModePath implements Moded: no page of the engine tells.
func (*vllmMoRIIO) ModePath() string { return "" }

// Whole implements Moded. A decode engine that reads takes every prompt for one whose KV cache will come: without a hand-off it answers
// with status 200, from memory that no one has written to.
func (d *vllmMoRIIO) Whole([]byte) (bool, error) { return d.o.Write, nil }

// PushesAfterAnswer implements Pusher. A decode engine that is written to keeps its blocks until that has happened. One that reads lets all
// its requests wait for prefill.
func (d *vllmMoRIIO) PushesAfterAnswer() (decodeKeeps bool) { return d.o.Write }

// noRank is the rank of an attempt whose engines have none, or choose one.
const noRank = -1

// moriioLegs are the legs of an attempt.
type moriioLegs struct {
	dialect                   *vllmMoRIIO
	request                   *request.Request // of parallel legs only until decode has answered: its body is dropped then
	api                       pd.API
	prefill                   pd.Target
	local                     string // address of decode
	prefillHosts, decodeHosts []string
	transfer                  string
	rank                      int     // of prefill, and of decode if prefill writes: a decode rank asks only the prefill rank of its own number
	decodeRank                pd.Rank // of a decode engine that reads
	cached                    int64   // tokens of the prompt in prefill's cache; -1: not reported
}

// UseRanks implements Ranked.
func (a *moriioLegs) UseRanks(prefill, decode pd.Rank) {
	if number, ok := prefill.Number(); ok && (number < a.dialect.o.Data || !a.dialect.o.Write) {
		a.rank = number
	}
	a.decodeRank = decode
}

// SetHeader implements HeaderSetter. A pod with a part of the ranks numbers its own from 0 on.
func (a *moriioLegs) SetHeader(role pd.Role, h http.Header) {
	if role == pd.RoleDecode && !a.dialect.o.Write {
		setRankHeader(a.decodeRank, h)
		return
	}
	if a.dialect.o.Data <= 1 && a.dialect.o.Write || a.rank == noRank {
		return
	}
	rank := a.rank
	if local := a.dialect.o.LocalData; local > 0 {
		rank %= local
	}
	h[rankHeader] = []string{strconv.Itoa(rank)}
}

// Prefill implements Attempt. An engine that ends a request by a stop token frees its blocks at once, though it may still be writing them
// to decode: so the leg ends by its limit only.
func (a *moriioLegs) Prefill() (request.Payload, error) {
	e, err := a.request.Edit()
	if err != nil {
		return request.Payload{}, err
	}
	OneToken(a.request, e)
	endByLimit(a.request, e)
	b := append([]byte(`{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_port":null,"remote_host":`),
		quoted(a.local)...)
	e.Set("kv_transfer_params", append(a.appendCommon(b, a.dialect.o.Decode, a.decodeHosts), '}'))
	return e.Payload()
}

// appendCommon appends the members that both legs have: the engine at the other end, and the transfer.
func (a *moriioLegs) appendCommon(b []byte, other MoRIIOPorts, hosts []string) []byte {
	o := &a.dialect.o
	b = fmt.Appendf(b, `,"remote_handshake_port":%d,"remote_notify_port":%d,"remote_dp_rank":%d,"remote_dp_rank_override":true,"transfer_id":"%s","tp_size":%d,"remote_dp_size":%d`,
		other.Handshake, other.Notify, max(0, a.rank), a.transfer, o.Tensor, o.Data)
	b = appendHosts(b, hosts)
	if len(hosts) > 0 && o.LocalData > 0 {
		b = fmt.Appendf(b, `,"remote_dp_size_local":%d`, o.LocalData)
	}
	return b
}

// appendHosts appends the member that names the pods of an engine, if it has several.
func appendHosts(b []byte, hosts []string) []byte {
	for i, host := range hosts {
		if i == 0 {
			b = append(b, `,"remote_hosts":[`...)
		} else {
			b = append(b, ',')
		}
		b = append(b, quoted(host)...)
	}
	if len(hosts) > 0 {
		b = append(b, ']')
	}
	return b
}

func quoted(text string) []byte { return appendJSON(nil, text) }

// The members of moriioParams that are read, in the order of moriioTable.
const (
	moPrefill = iota
	moTransfer
	moBlocks
	moEngine
	moHost
	moHandshake
	moNotify
	moRank
)

var moriioTable = body.NewTable(
	body.Want{Path: "do_remote_prefill", Once: true},
	body.Want{Path: "transfer_id", Once: true},
	body.Want{Path: "remote_block_ids", Once: true},
	body.Want{Path: "remote_engine_id", Once: true},
	body.Want{Path: "remote_host", Once: true},
	body.Want{Path: "remote_handshake_port", Once: true},
	body.Want{Path: "remote_notify_port", Once: true},
	body.Want{Path: "remote_dp_rank", Once: true},
)

// moriioParams is the object in which a prefill engine describes the KV cache of one request. A decode engine ends on most objects that
// lack a member, and never gets the KV cache of one that has another transfer's id.
type moriioParams struct {
	raw               []byte // as the engine wrote it
	engine            string
	handshake, notify int
	rank              int
	blocks, groups    int
}

// parse checks the value of kv_transfer_params in prefill's answer. It must be that of this attempt's transfer.
func (a *moriioLegs) parse(raw []byte) (moriioParams, error) {
	if len(raw) > maxHandoff {
		return moriioParams{}, fmt.Errorf("hand-off object is longer than %d bytes", maxHandoff)
	}
	s := handoffScanners.Get().(*body.Scanner)
	defer handoffScanners.Put(s)
	if err := s.Scan(moriioTable, body.Limits{Depth: 16}, raw); err != nil {
		return moriioParams{}, fmt.Errorf("hand-off object: %w", err)
	}
	if s.Root().Kind != body.Object {
		return moriioParams{}, errors.New("hand-off is not an object")
	}
	f := fields{raw, s, moriioTable}
	object := s.Root().Value
	p := moriioParams{raw: raw[object.Start:object.End]}
	if m, ok := s.Find(moPrefill); !ok || m.Kind != body.True {
		return p, errors.New("hand-off lacks do_remote_prefill true")
	}
	if _, ok := s.Find(moHandshake); !ok {
		return p, errNotMoRIIO
	}
	var err error
	for want, to := range map[int]*int{moHandshake: &p.handshake, moNotify: &p.notify} {
		if *to, err = f.integer(want); err != nil || *to < 1 || *to > 65535 {
			return p, fmt.Errorf("hand-off lacks a %s from 1 to 65535", moriioTable.Path(want))
		}
	}
	if p.engine, err = f.text(moEngine); err != nil {
		return p, err
	}
	if _, err = f.text(moHost); err != nil {
		return p, err
	}
	if transfer, err := f.text(moTransfer); err != nil || transfer != a.transfer {
		return p, fmt.Errorf("hand-off is of the transfer %.64q, and this one is %q", transfer, a.transfer)
	}
	if p.rank, err = f.integer(moRank); err != nil || p.rank < 0 || a.dialect.o.Write && p.rank >= max(1, a.dialect.o.Data) {
		return p, fmt.Errorf("hand-off has the data-parallel rank %d, and --moriio-dp-size says %d", p.rank, a.dialect.o.Data)
	}
	m, ok := s.Find(moBlocks)
	if !ok || m.Kind != body.Array {
		return p, errors.New("hand-off lacks a list remote_block_ids")
	}
	p.blocks, p.groups, err = countBlocks(raw[m.Value.Start:m.Value.End])
	return p, err
}

var errNotMoRIIO = fmt.Errorf("%w: the prefill engine answers with a hand-off of another connector than MoRIIOConnector (it lacks remote_handshake_port)", ErrWrongProtocol)

// accept reads prefill's answer, and its counts of the prompt's tokens.
func (a *moriioLegs) accept(answer []byte) (p moriioParams, prompt, cached int64, err error) {
	var s body.Scanner
	if err := s.Scan(completionTable, body.Limits{}, answer); err != nil {
		return p, 0, 0, fmt.Errorf("reading the prefill answer: %w", err)
	}
	m, ok := s.Find(aParams)
	switch none := !ok || m.Kind == body.Null; {
	case none && completed(answer, &s) && !bytes.Contains(answer, limitEnd[a.api]):
		return p, 0, 0, ErrEnded
	case none:
		return p, 0, 0, ErrNoHandoff
	}
	if p, err = a.parse(answer[m.Value.Start:m.Value.End:m.Value.End]); err != nil {
		return p, 0, 0, err
	}
	prompt, cached = usage(a.api, func(want int) int64 { return tokens(answer, &s, want) })
	return p, prompt, cached, nil
}

// checkBlocks compares the number of blocks with what the prompt needs. A decode engine that reads ends if there are too few.
func (d *vllmMoRIIO) checkBlocks(p *moriioParams, prompt int) error {
	switch {
	case d.o.Write || p.groups != 1:
		return nil
	case d.blockSize == 0:
		return d.sizes.check(p.engine, prompt, p.blocks)
	case prompt > 0 && p.blocks < (prompt+d.blockSize-1)/d.blockSize:
		return fmt.Errorf("hand-off has %d blocks, %d tokens need %d", p.blocks, prompt, (prompt+d.blockSize-1)/d.blockSize)
	}
	return nil
}

// Cached implements UsageCorrector. Decode reports what it got as cached.
func (a *moriioLegs) Cached() (tokens int64, ok bool) { return a.cached, a.cached >= 0 }

// Settle implements Releaser. A decode engine that has read the request tells prefill, whether it has given it blocks or not.
func (*moriioLegs) Settle() time.Duration { return 250 * time.Millisecond }

// Pins implements Releaser. vLLM tells prefill of a request that it does not admit (503). With other refusals it may not have read the
// parameters.
func (*moriioLegs) Pins(status int) bool {
	return status >= http.StatusBadRequest && status != http.StatusServiceUnavailable
}

// Released implements RequestReleaser: with any other status vLLM has not read the parameters.
func (*moriioLegs) Released(status int) bool { return status == http.StatusNotFound }

// Tries implements RequestReleaser.
func (*moriioLegs) Tries() (n int, pause time.Duration) { return 4, 25 * time.Millisecond }

// decodeLeg is the decode leg with these parameters.
func (a *moriioLegs) decodeLeg(params []byte, stream bool) (request.Payload, error) {
	e, err := a.request.Edit()
	if err != nil {
		return request.Payload{}, err
	}
	if stream && !a.request.Stream() {
		e.Set("stream", jsonTrue)
	}
	e.Set("kv_transfer_params", params)
	return e.Payload()
}

// moriioRelease is a request for a model that no engine serves: decode reads the parameters, has prefill free the blocks, and refuses
// with 404.
func moriioRelease(params []byte) (path string, b []byte) {
	b = append([]byte(`{"model":"tandem-release","prompt":"x","max_tokens":1,"kv_transfer_params":`), params...)
	return pd.APICompletions.Path(), append(b, '}')
}

// moriioAttempt is an attempt of legs one after the other, and its hand-off when prefill has answered.
type moriioAttempt struct {
	moriioLegs
	params moriioParams
}

// Accept implements Attempt. The hand-off keeps the answer's bytes.
func (a *moriioAttempt) Accept(answer []byte) (Handoff, error) {
	p, prompt, cached, err := a.accept(answer)
	if err != nil {
		return nil, err
	}
	a.cached, a.rank = cached, p.rank
	if hosts := appendHosts(nil, a.prefillHosts); len(hosts) > 0 { // in front: what an engine says itself counts instead
		p.raw = bytes.Join([][]byte{[]byte("{"), hosts[1:], []byte(","), p.raw[1:]}, nil)
	}
	a.params = p
	return a, a.dialect.checkBlocks(&p, int(prompt))
}

// Decode implements Handoff.
func (a *moriioAttempt) Decode() (request.Payload, error) { return a.decodeLeg(a.params.raw, false) }

// Discard implements Releaser.
func (a *moriioAttempt) Discard() (request.Payload, error) { return a.decodeLeg(a.params.raw, true) }

// ReleaseRequest implements RequestReleaser.
func (a *moriioAttempt) ReleaseRequest() (path string, b []byte) { return moriioRelease(a.params.raw) }

// Trust implements Leased.
func (a *moriioAttempt) Trust() time.Duration { return a.dialect.trust }

// Pin implements Leased: the engines take no notices.
func (*moriioAttempt) Pin() Pin { return Pin{} }

// Blocks implements Sized.
func (a *moriioAttempt) Blocks() int { return a.params.blocks }

// moriioWriteAttempt is one whose prefill engine writes.
type moriioWriteAttempt struct{ moriioAttempt }

// Accept implements Attempt.
func (a *moriioWriteAttempt) Accept(answer []byte) (Handoff, error) {
	h, err := a.moriioAttempt.Accept(answer)
	if h == nil {
		return nil, err
	}
	return a, err
}

// ReadsOnce implements OnceReleaser. A prefill engine that is told to free the blocks of a transfer writes no more of it, and a decode leg
// that has begun to wait for that would keep its blocks for good. Otherwise both free theirs when prefill has written.
func (*moriioWriteAttempt) ReadsOnce() {}

// ReadsOnce implements OnceReleaser, as above.
func (*moriioParallelAttempt) ReadsOnce() {}

// moriioParallelAttempt is an attempt of legs that are sent at once, and its hand-off.
type moriioParallelAttempt struct{ moriioLegs }

// Handoff implements Rendezvous.
func (a *moriioParallelAttempt) Handoff() Handoff { return a }

// paramsOfDecode are decode's parameters, as the prefill engine would answer them.
func (a *moriioParallelAttempt) paramsOfDecode() []byte {
	ports := a.dialect.o.Prefill
	engine := net.JoinHostPort(a.prefill.Host, strconv.Itoa(ports.Handshake))
	b := fmt.Appendf(nil, `{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":%s,"remote_block_ids":[],"remote_port":%d,"remote_host":%s`,
		quoted(engine), ports.Handshake, quoted(a.prefill.Host))
	return append(a.appendCommon(b, ports, a.prefillHosts), '}')
}

// Decode implements Handoff.
func (a *moriioParallelAttempt) Decode() (request.Payload, error) {
	return a.decodeLeg(a.paramsOfDecode(), false)
}

// Discard implements Releaser.
func (a *moriioParallelAttempt) Discard() (request.Payload, error) {
	return a.decodeLeg(a.paramsOfDecode(), true)
}

// ReleaseRequest implements RequestReleaser. Prefill takes a release that comes before it has computed the prompt, too.
func (a *moriioParallelAttempt) ReleaseRequest() (path string, b []byte) {
	return moriioRelease(a.paramsOfDecode())
}

// Accept implements Attempt. Decode has asked the ports and the rank of the settings, and would wait for ever at others.
func (a *moriioParallelAttempt) Accept(answer []byte) (Handoff, error) {
	p, _, cached, err := a.accept(answer)
	if err != nil {
		return nil, err
	}
	told := *a // decode's leg may be reading a
	told.cached = cached
	ports := a.dialect.o.Prefill
	switch {
	case len(a.prefillHosts) > 0: // the rank's pod may have ports of its own
	case p.notify != ports.Notify:
		return &told, fmt.Errorf("the prefill engine's notify_port is %d: set --moriio-prefill-notify-port", p.notify)
	case p.handshake != ports.Handshake:
		return &told, fmt.Errorf("the prefill engine's handshake_port is %d: set --moriio-prefill-handshake-port", p.handshake)
	}
	if p.rank != max(0, a.rank) {
		return &told, fmt.Errorf("the prefill engine has run the leg on rank %d, and was told to run it on %d", p.rank, a.rank)
	}
	return &told, nil
}

var (
	_ Dialect         = (*vllmMoRIIO)(nil)
	_ Controller      = (*vllmMoRIIO)(nil)
	_ HeaderStripper  = (*vllmMoRIIO)(nil)
	_ Unfinisher      = (*vllmMoRIIO)(nil)
	_ LocalRanker     = (*vllmMoRIIO)(nil)
	_ Pusher          = (*vllmMoRIIO)(nil)
	_ Moded           = (*vllmMoRIIO)(nil)
	_ Dialect         = (*vllmMoRIIOParallel)(nil)
	_ Attempt         = (*moriioAttempt)(nil)
	_ Ranked          = (*moriioAttempt)(nil)
	_ HeaderSetter    = (*moriioAttempt)(nil)
	_ Releaser        = (*moriioAttempt)(nil)
	_ RequestReleaser = (*moriioAttempt)(nil)
	_ Leased          = (*moriioAttempt)(nil)
	_ UsageCorrector  = (*moriioAttempt)(nil)
	_ Sized           = (*moriioAttempt)(nil)
	_ OnceReleaser    = (*moriioWriteAttempt)(nil)
	_ OnceReleaser    = (*moriioParallelAttempt)(nil)
	_ Rendezvous      = (*moriioParallelAttempt)(nil)
	_ Ranked          = (*moriioParallelAttempt)(nil)
	_ HeaderSetter    = (*moriioParallelAttempt)(nil)
	_ Releaser        = (*moriioParallelAttempt)(nil)
	_ RequestReleaser = (*moriioParallelAttempt)(nil)
	_ UsageCorrector  = (*moriioParallelAttempt)(nil)
)
