package keeper

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/transfer"
)

func TestNotify(t *testing.T) {
	k, other := start(t, asProcess), agent(t, "other")
	metadata, err := base64.StdEncoding.DecodeString(up(t, k, 1).About)
	if err != nil {
		t.Fatal(err)
	}
	peer := load(t, k, other.Metadata())
	for _, message := range []string{"", "HB:one", strings.Repeat("\x00", transfer.MaxMessage)} {
		if err := k.Notify(within(t), peer, []byte(message)); err != nil {
			t.Fatal(err)
		}
		mustReceive(t, other, "keeper", message)
		if err := other.Notify(within(t), load(t, other, metadata), []byte(message)); err != nil {
			t.Fatal(err)
		}
		mustReceive(t, k, "other", message)
	}
}

func TestRefusals(t *testing.T) {
	k, other := start(t, asProcess), agent(t, "other")
	up(t, k, 1)
	peer := load(t, k, other.Metadata())
	ended, end := context.WithCancel(t.Context())
	end()
	for name, c := range map[string]struct{ err, want error }{
		"unknown peer":  {k.Notify(within(t), "stranger", nil), transfer.ErrUnknownPeer},
		"too long":      {k.Notify(within(t), peer, make([]byte, transfer.MaxMessage+1)), transfer.ErrInvalid},
		"no metadata":   {loadErr(t, k, []byte("x")), transfer.ErrInvalid},
		"too much":      {loadErr(t, k, make([]byte, MaxMetadata+1)), transfer.ErrInvalid},
		"ended context": {k.Notify(ended, peer, nil), context.Canceled},
	} {
		t.Run(name, func(t *testing.T) { wantErr(t, c.err, c.want) })
	}
	k.Forget(peer)
	k.Forget("stranger")
	wantErr(t, k.Notify(within(t), peer, nil), transfer.ErrUnknownPeer)
	if s, _ := k.State(); s.Starts != 1 {
		t.Errorf("refusals have the process started %d times", s.Starts)
	}
}

func loadErr(t *testing.T, k *Keeper, metadata []byte) error {
	t.Helper()
	_, err := k.Load(within(t), metadata)
	return err
}

// However the process ends, the running call gets an error, the process restarts, and it has no peers.
func TestProcessEnds(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *Keeper){
		"killed": func(t *testing.T, k *Keeper) {
			if err := living(k).process.Kill(); err != nil {
				t.Fatal(err)
			}
		},
		"dies of metadata": func(t *testing.T, k *Keeper) { wantErr(t, loadErr(t, k, deadly), transfer.ErrGone) },
		"hangs":            func(t *testing.T, k *Keeper) { wantErr(t, loadErr(t, k, sticky), transfer.ErrGone) },
		"is stopped": func(t *testing.T, k *Keeper) {
			if err := living(k).process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			err := transfer.ErrUnknownPeer
			for errors.Is(err, transfer.ErrUnknownPeer) { // its threads take a moment to stop
				err = k.Notify(within(t), "stranger", nil)
			}
			wantErr(t, err, transfer.ErrGone)
		},
	} {
		t.Run(name, func(t *testing.T) {
			k, other := start(t, asProcess, func(c *Config) { c.CallLimit = 2 * time.Second }), agent(t, "other")
			up(t, k, 1)
			peer := load(t, k, other.Metadata())
			end(t, k)
			s := up(t, k, 2)
			if s.Err == nil {
				t.Error("the state does not say why it ended")
			}
			wantErr(t, k.Notify(within(t), peer, nil), transfer.ErrUnknownPeer)
			if err := k.Notify(within(t), load(t, k, other.Metadata()), []byte("again")); err != nil {
				t.Fatal(err)
			}
			mustReceive(t, other, "keeper", "again")
		})
	}
}

// A call whose context ends does not delay the next calls, nor does it kill the process.
func TestCallContextEnds(t *testing.T) {
	k := start(t, asProcess)
	up(t, k, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	wantErr(t, k.Notify(ctx, slow, nil), context.DeadlineExceeded)
	wantErr(t, k.Notify(within(t), "stranger", nil), transfer.ErrUnknownPeer)
	if s, _ := k.State(); s.Starts != 1 {
		t.Errorf("the process was started %d times", s.Starts)
	}
}

func TestProcessCannotStart(t *testing.T) {
	for name, c := range map[string]struct{ what, says string }{
		"declines":     {asDecliner, "there is no library"},
		"ends at once": {asDead, "(exit status 3); its last output: cannot go on"},
		"babbles":      {asBabbler, "1195725856 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			k := start(t, c.what)
			s := await(t, k, func(s State) bool { return s.Err != nil && s.Starts > 2 })
			if s.Up() || !strings.Contains(s.Err.Error(), c.says) {
				t.Errorf("state %+v does not say %q", s, c.says)
			}
			wantErr(t, k.Notify(within(t), "stranger", nil), transfer.ErrGone)
		})
	}
	t.Run("is not there", func(t *testing.T) {
		k := start(t, asProcess, func(c *Config) { c.Path += "-nowhere" })
		if s := await(t, k, func(s State) bool { return s.Err != nil }); !errors.Is(s.Err, os.ErrNotExist) || s.Starts != 0 {
			t.Errorf("state %+v", s)
		}
	})
}

// The pause grows, so that a process that cannot start costs next to nothing.
func TestPauseGrows(t *testing.T) {
	began := time.Now()
	k := start(t, asDead, func(c *Config) { c.Pause = 20 * time.Millisecond })
	await(t, k, func(s State) bool { return s.Starts == 5 })
	if took, least := time.Since(began), (20+40+80+160)*time.Millisecond; took < least {
		t.Errorf("five starts took %v, less than the pauses between them, %v", took, least)
	}
}

func TestClose(t *testing.T) {
	for _, what := range []string{asProcess, asMute} {
		t.Run(what, func(t *testing.T) {
			k := start(t, what)
			await(t, k, func(s State) bool { return s.Up() || what == asMute && s.Starts == 1 })
			l := living(k)
			for range 2 {
				closeKeeper(t, k)
			}
			if l != nil {
				wantErr(t, l.process.Signal(syscall.Signal(0)), os.ErrProcessDone)
			}
			wantErr(t, k.Notify(within(t), "stranger", nil), transfer.ErrClosed)
			if _, open := <-k.Notifications(); open {
				t.Error("a closed keeper got a message")
			}
		})
	}
}

func TestManyAtOnce(t *testing.T) {
	k, other := start(t, asProcess), agent(t, "other")
	up(t, k, 1)
	peer := load(t, k, other.Metadata())
	const callers, each = 16, 20
	var calling sync.WaitGroup
	for i := range callers {
		calling.Go(func() {
			for j := range each {
				if err := k.Notify(t.Context(), peer, fmt.Appendf(nil, "%d %d", i, j)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	next := map[int]int{}
	for range callers * each {
		var caller, number int
		if _, err := fmt.Sscan(string((<-other.Notifications()).Message), &caller, &number); err != nil {
			t.Fatal(err)
		}
		if next[caller] != number {
			t.Fatalf("message %d of caller %d came after %d", number, caller, next[caller])
		}
		next[caller]++
	}
	calling.Wait()
}

func BenchmarkNotify(b *testing.B) {
	k, other := start(b, asProcess), agent(b, "other")
	up(b, k, 1)
	peer := load(b, k, other.Metadata())
	message := []byte("HB:cmpl-0123456789abcdef0123456789abcdef-0-8a7a7f67")
	b.ReportAllocs()
	for b.Loop() {
		if err := k.Notify(b.Context(), peer, message); err != nil {
			b.Fatal(err)
		}
		<-other.Notifications()
	}
}
