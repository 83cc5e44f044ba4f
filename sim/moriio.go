package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/kv"
	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/transfer"
)

// MoRIIOConfig makes an engine hand KV over as vLLM's MoRIIOConnector does, by its source (vLLM 0.32.0).
type MoRIIOConfig struct {
	// Mode says which engine moves the KV; default: the engine has no such connector.
	Mode MoRIIOMode
	// Producer makes a prefill engine (kv_role kv_producer); other engines decode (kv_consumer).
	Producer bool
	// Notify is the host:port where other engines send notices; default: a free port of the side channel's host.
	Notify string
}

// MoRIIOMode says which engine moves the KV.
type MoRIIOMode string

// The modes.
const (
	MoRIIOWrite MoRIIOMode = "write" // prefill writes, as it does by default
	MoRIIORead  MoRIIOMode = "read"  // decode reads (read_mode)
)

// moriioDefer is how long a prefill engine keeps blocks that no engine asks for (defer_timeout).
const moriioDefer = 60 * time.Second

// moriioTransfer is how long a step of a decode engine waits for the KV that it reads (transfer_timeout).
const moriioTransfer = 30 * time.Second

// moriio is the connector's hand-off. Both engines know a transfer by its transfer_id. They tell each other of blocks and of releases on
// their notify ports, and take the metadata of the other's memory from its handshake port, which is the side channel here.
//
// The transport can only read, so a prefill engine that writes has the decode engine read, as with pushes.
type moriio struct {
	*connector
	listener net.Listener // of notices
	port     int
	deaf     bool // a notice has ended the thread that reads notices: all later ones are lost

	finished map[string]*core.Sequence // at prefill, by transfer: those whose blocks are leased
	targets  map[string]source         // at prefill that writes, by transfer: the decode engine that the leg named
	told     map[string]moriioNotice   // at prefill that writes, by transfer: the blocks of a decode engine
	released map[string]bool           // at prefill, by transfer: releases that came before the prompt was computed
	arriving map[string]*load          // at decode that is written to, by transfer
}

func newMoRIIO(c *connector) *moriio {
	return &moriio{connector: c, finished: make(map[string]*core.Sequence), targets: make(map[string]source), told: make(map[string]moriioNotice),
		released: make(map[string]bool), arriving: make(map[string]*load)}
}

// listen opens the notify port, and takes the engine's id from its address, as the real one does.
func (m *moriio) listen() (err error) {
	address := m.cfg.KV.MoRIIO.Notify
	if address == "" {
		address = net.JoinHostPort(m.identity.host, "0")
	}
	if m.listener, err = net.Listen("tcp", address); err != nil {
		return fmt.Errorf("opening the notify port: %w", err)
	}
	m.port = m.listener.Addr().(*net.TCPAddr).Port
	return nil
}

func (m *moriio) writes() bool   { return m.cfg.KV.MoRIIO.Mode == MoRIIOWrite }
func (m *moriio) producer() bool { return m.cfg.KV.MoRIIO.Producer }

// transferOf returns the id of a transfer. Without one an engine makes one up, which the other engine does not know.
func transferOf(p TransferParams, requestID string) string {
	if id := p.members["transfer_id"]; pyjson.Truthy(id) {
		return fmt.Sprint(id)
	}
	return "sidecar-" + requestID
}

// moriioPeer is where a leg says that the other engine is.
type moriioPeer struct {
	host              string
	handshake, notify int
}

// peerOf returns where the other engine is; the real engine ends of an error here.
func peerOf(p TransferParams) (moriioPeer, error) {
	peer := moriioPeer{}
	host, ok := p.members["remote_host"]
	if !ok || !pyjson.Truthy(host) {
		return peer, errors.New("the leg lacks remote_host")
	}
	peer.host = fmt.Sprint(host)
	for name, to := range map[string]*int{"remote_handshake_port": &peer.handshake, "remote_notify_port": &peer.notify} {
		n, err := strconv.Atoi(fmt.Sprint(p.members[name]))
		if err != nil {
			return peer, fmt.Errorf("reading %s of the leg: %w", name, err)
		}
		*to = n
	}
	for _, name := range []string{"remote_block_ids", "remote_engine_id"} {
		if _, ok := p.members[name]; !ok {
			return peer, fmt.Errorf("the leg lacks %s", name)
		}
	}
	return peer, nil
}

// notifyOf returns the notify port alone, which is all that a decode engine that is written to needs.
func notifyOf(p TransferParams) (address string, err error) {
	host, port := p.members["remote_host"], p.members["remote_notify_port"]
	if !pyjson.Truthy(host) || !pyjson.Truthy(port) {
		return "", errors.New("the leg lacks remote_host or remote_notify_port")
	}
	n, err := strconv.Atoi(fmt.Sprint(port))
	if err != nil {
		return "", fmt.Errorf("reading remote_notify_port of the leg: %w", err)
	}
	return net.JoinHostPort(fmt.Sprint(host), strconv.Itoa(n)), nil
}

// Queued implements core.Protocol. A decode engine that reads takes every prompt for one whose KV comes.
func (m *moriio) Queued(s *core.Sequence) {
	if !m.producer() && (legOf(s).params.RemotePrefill || !m.writes()) {
		s.KV = core.Wanted
	}
	m.core.Wait(s)
}

// Admitted implements core.Protocol. The engine ends of legs that do not say where the other engine is, whichever role they are for.
func (m *moriio) Admitted(s *core.Sequence) {
	m.connector.Admitted(s)
	p := legOf(s).params
	if p.RemoteDecode && m.writes() {
		peer, err := peerOf(p)
		if err != nil {
			m.core.Die(fmt.Errorf("saving the KV of %s: %w", s.ID, err))
			return
		}
		address := net.JoinHostPort(peer.host, strconv.Itoa(peer.handshake))
		m.targets[transferOf(p, s.ID)] = source{engineID: address, address: address}
	}
	if p.RemotePrefill && m.producer() && m.writes() { // a decode leg: it takes itself for the decode engine
		address, err := notifyOf(p)
		if err != nil {
			m.core.Die(fmt.Errorf("loading KV for %s: %w", s.ID, err))
			return
		}
		m.notice(address, moriioNotice{Type: noticeBlocks, Transfer: transferOf(p, s.ID), Request: s.ID})
	}
}

// Load implements core.Protocol.
func (m *moriio) Load(s *core.Sequence) {
	if m.writes() {
		m.await(s)
		return
	}
	m.read(s)
}

// await tells prefill of the blocks of a sequence, which stay its own until prefill has written to them.
func (m *moriio) await(s *core.Sequence) {
	p := legOf(s).params
	address, err := notifyOf(p)
	if err != nil {
		m.core.Die(fmt.Errorf("loading KV for %s: %w", s.ID, err))
		return
	}
	transfer := transferOf(p, s.ID)
	m.arriving[transfer] = &load{seq: s, local: s.Blocks[s.Computed/m.cfg.KV.BlockSize:], start: s.Computed, tokens: slices.Clone(s.Tokens[:s.Prompt])}
	if pyjson.Truthy(p.members["remote_dp_rank_override"]) && fmt.Sprint(p.members["remote_dp_rank"]) != "0" {
		return // another rank of this engine would tell prefill, and there is none
	}
	m.notice(address, moriioNotice{Type: noticeBlocks, Transfer: transfer, Request: s.ID, Blocks: kv.IDs(s.Blocks)})
}

// read reads the KV that prefill has named, within a step of the engine. If the leg names none, the sequence is computed with what is in the
// blocks.
func (m *moriio) read(s *core.Sequence) {
	p := legOf(s).params
	_, named := p.members["remote_engine_id"]
	named = named && p.RemotePrefill && pyjson.Truthy(p.members["remote_block_ids"])
	local := s.Blocks[s.Computed/m.cfg.KV.BlockSize:]
	if !named {
		if s.Prompt-s.Computed > 1 {
			m.counts.foreign++
			m.overwrite(local)
			legOf(s).external = s.Prompt - s.Computed - 1 // the last token is computed here
			s.Usage.Cached = s.Prompt - 1
			m.core.Arrived(s, s.Prompt)
			return
		}
		m.core.Arrived(s, s.Computed)
		return
	}
	ids, err := p.blockIDs()
	var peer moriioPeer
	if err == nil {
		peer, err = peerOf(p)
	}
	if err == nil && len(ids) < len(local)-1 {
		err = fmt.Errorf("%d remote blocks for %d local ones", len(ids), len(local))
	}
	if err != nil {
		m.core.Die(fmt.Errorf("loading KV for %s: %w", s.ID, err))
		return
	}
	address := net.JoinHostPort(peer.host, strconv.Itoa(peer.handshake))
	n := min(len(ids), len(local))
	l := &load{seq: s, from: source{engineID: address, address: address}, local: local[:n], remote: ids[len(ids)-n:], start: s.Computed, tokens: slices.Clone(s.Tokens[:s.Prompt])}
	m.core.Stall() // the whole batch waits
	m.core.Spawn(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, moriioTransfer)
		defer cancel()
		l.err = m.transferKV(ctx, l)
		to, notice := net.JoinHostPort(peer.host, strconv.Itoa(peer.notify)), moriioNotice{Type: noticeRelease, Transfer: transferOf(p, s.ID)}
		told := sendNotice(ctx, to, notice)
		m.core.Post(func() {
			m.core.Resume()
			if told != nil {
				m.notice(to, notice)
			}
			m.loadEnded(l)
			if l.err == nil && !s.Done { // the last token is computed here
				legOf(s).external--
				s.Usage.Cached--
			}
		})
	})
}

// overwrite writes the KV of a made-up prompt into blocks of a sequence.
func (m *moriio) overwrite(blocks []*kv.Block) {
	foreign := make([]int, m.cfg.KV.BlockSize)
	for i := range foreign {
		foreign[i] = i
	}
	for _, b := range blocks {
		if err := m.kv.Compute([]*kv.Block{b}, foreign, 0); err != nil {
			m.core.Die(err)
		}
	}
}

// Finished implements core.Protocol. Only a leg that ended by its limit is handed over.
func (m *moriio) Finished(s *core.Sequence, last Output) {
	p := legOf(s).params
	if !p.RemoteDecode || last.Finish != "length" {
		m.countFinished(s, last.Finish, time.Now())
		m.core.End(s, last)
		m.core.Free(s)
		return
	}
	m.countFinished(s, last.Finish, time.Now())
	last.Result = m.handOver(s)
	m.core.End(s, last)
}

// moriioHandoff is the kv_transfer_params of a prefill answer, members in the engine's order.
type moriioHandoff struct {
	DoRemotePrefill      bool    `json:"do_remote_prefill"`
	DoRemoteDecode       bool    `json:"do_remote_decode"`
	RemoteBlockIDs       [][]int `json:"remote_block_ids"`
	RemoteEngineID       string  `json:"remote_engine_id"`
	RemoteHost           string  `json:"remote_host"`
	RemoteHandshakePort  int     `json:"remote_handshake_port"`
	RemoteNotifyPort     int     `json:"remote_notify_port"`
	RemoteDPRank         int     `json:"remote_dp_rank"`
	RemoteDPRankOverride bool    `json:"remote_dp_rank_override"`
	RemoteDPSize         int     `json:"remote_dp_size"`
	RemoteDPSizeLocal    int     `json:"remote_dp_size_local"`
	TPSize               int     `json:"tp_size"`
	TransferID           string  `json:"transfer_id"`
}

// handOver leases the blocks of a finished prefill, and describes them.
func (m *moriio) handOver(s *core.Sequence) *Handoff {
	m.core.Forget(s)
	transfer := transferOf(legOf(s).params, s.ID)
	l := &lease{blocks: s.Blocks, expires: time.Now().Add(m.cfg.KV.Lease)}
	m.leases.open[s.ID], m.leases.changed = l, true
	m.core.Pool().Pin(l.blocks)
	m.finished[transfer] = s
	h := &Handoff{moriio: &moriioHandoff{
		DoRemotePrefill: true, RemoteBlockIDs: [][]int{kv.IDs(s.Blocks)},
		RemoteEngineID: m.identity.engineID, RemoteHost: m.identity.host, RemoteHandshakePort: m.identity.port, RemoteNotifyPort: m.port,
		RemoteDPRankOverride: true, RemoteDPSize: 1, RemoteDPSizeLocal: 1, TPSize: 1, TransferID: transfer,
	}}
	if legOf(s).stale {
		m.expire(s.ID, l)
		m.overwriteFree(l.blocks)
		delete(m.finished, transfer)
		return h
	}
	if m.released[transfer] {
		delete(m.released, transfer)
		m.release(transfer)
		return h
	}
	m.write(transfer)
	return h
}

// release ends the lease of a transfer.
func (m *moriio) release(transfer string) {
	s := m.finished[transfer]
	delete(m.finished, transfer)
	delete(m.targets, transfer)
	delete(m.told, transfer)
	if l, ok := m.leases.open[s.ID]; ok {
		m.endLease(s.ID, l)
		m.counts.released++
		m.counts.kvBytesReleased += int64(len(l.blocks) * m.kv.BlockBytes())
	}
}

// moriioWritten is what a prefill engine tells a decode engine: the blocks that the real one would have written.
type moriioWritten struct {
	Transfer string `json:"transfer_id"`
	LeaseID  string `json:"lease_id"`
	Engine   string `json:"engine"`
	Address  string `json:"address"`
	Blocks   []int  `json:"blocks"`
}

const moriioWrite = "MORIIO_WRITE:"

// write writes a transfer's KV to the decode engine, if the prompt is computed and the decode engine has named its blocks.
func (m *moriio) write(transfer string) {
	s, computed := m.finished[transfer]
	notice, named := m.told[transfer]
	to, targeted := m.targets[transfer]
	if !computed || !named || !targeted {
		return
	}
	l, held := m.leases.open[s.ID]
	if !held {
		return
	}
	delete(m.told, transfer)
	text, err := json.Marshal(moriioWritten{transfer, s.ID, m.identity.engineID, joinAddress(m.identity.host, strconv.Itoa(m.identity.port)), kv.IDs(l.blocks)})
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	m.core.Spawn(func(ctx context.Context) {
		p, err := m.peers.meet(ctx, to)
		if err == nil {
			if err = m.transport.Notify(ctx, p.name, append([]byte(moriioWrite), text...)); err != nil {
				m.peers.forgetLost(p, err)
			}
		}
		if err != nil { // the lease ends by itself
			m.log.Warn("writing KV failed", "request", notice.Request, "error", err)
		}
	})
}

// Notified implements core.Protocol. Decode reads what the real engine would have been sent, and the read ends prefill's lease.
func (m *moriio) Notified(n transfer.Notification) {
	message := string(n.Message)
	if len(message) < len(moriioWrite) || message[:len(moriioWrite)] != moriioWrite {
		for transfer, s := range m.finished {
			if message == s.ID+":1" {
				m.release(transfer)
			}
		}
		return
	}
	var w moriioWritten
	if err := json.Unmarshal([]byte(message[len(moriioWrite):]), &w); err != nil {
		m.log.Error("reading what was written", "error", err)
		return
	}
	l, ok := m.arriving[w.Transfer]
	if !ok || len(w.Blocks) < len(l.local) {
		return // the real prefill engine writes as many blocks as it has; decode waits for the rest
	}
	delete(m.arriving, w.Transfer)
	l.remote = w.Blocks[len(w.Blocks)-len(l.local):]
	l.from = source{engineID: w.Engine, requestID: w.LeaseID, address: w.Address}
	m.core.Spawn(func(ctx context.Context) {
		l.err = m.transferKV(ctx, l)
		m.core.Post(func() {
			if l.err != nil { // a write that breaks off is not told to decode, which goes on to wait
				m.log.Warn("KV does not arrive", "request", l.seq.ID, "error", l.err)
				return
			}
			m.loadEnded(l)
		})
	})
}

// Aborted implements core.Protocol. Blocks to which prefill may write stay until it has; if it never does, for good.
func (m *moriio) Aborted(s *core.Sequence) {
	if s.KV == core.Arriving {
		return
	}
	if s.KV == core.Wanted {
		m.releaseUnscheduled(legOf(s).params, s.ID)
	}
	m.core.Free(s)
}

// Expired implements core.Protocol.
func (m *moriio) Expired(now time.Time) {
	m.expireLeases(now)
	for transfer, s := range m.finished {
		if _, open := m.leases.open[s.ID]; !open {
			delete(m.finished, transfer)
			delete(m.targets, transfer)
			delete(m.told, transfer)
		}
	}
}

// releaseUnscheduled tells prefill that a request will not get its KV. An engine that reads ends of a leg without the members for that.
func (m *moriio) releaseUnscheduled(p TransferParams, requestID string) {
	if !p.RemotePrefill {
		return
	}
	if m.writes() {
		address, err := notifyOf(p)
		if err != nil || !pyjson.Truthy(p.members["transfer_id"]) {
			m.log.Warn("a hand-off that is not taken cannot be released", "request", requestID, "error", err)
			return
		}
		m.notice(address, moriioNotice{Type: noticeRelease, Transfer: transferOf(p, requestID)})
		return
	}
	peer, err := peerOf(p)
	if err != nil || !pyjson.Truthy(p.members["transfer_id"]) {
		m.core.Die(fmt.Errorf("releasing a hand-off that lacks members: %w", err))
		return
	}
	m.notice(net.JoinHostPort(peer.host, strconv.Itoa(peer.notify)), moriioNotice{Type: noticeRelease, Transfer: transferOf(p, requestID)})
}
