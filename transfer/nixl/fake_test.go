//go:build nixl && cgo && linux

package nixl

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/transfer"
)

// command makes the fake library fail; without lines it works again.
func command(t *testing.T, lines ...string) {
	t.Helper()
	path := os.Getenv("FAKE_NIXL")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
}

// withFake is a library that does what command says.
func withFake(t *testing.T) (library string) {
	t.Helper()
	t.Setenv("FAKE_NIXL", filepath.Join(t.TempDir(), "commands"))
	command(t)
	return fakeLibrary(t)
}

func TestFakeWorks(t *testing.T) {
	library := withFake(t)
	a, b := startAgent(t, library, "a"), startAgent(t, library, "b")
	toB := load(t, a, b.Metadata())
	for _, message := range []string{"one", "", "three"} {
		mustNotify(t, a, toB, message)
		mustReceive(t, b, a, message)
	}
}

// A start that fails leaves nothing behind, and says which call failed and what its number means.
func TestStartFails(t *testing.T) {
	library := withFake(t)
	for call, status := range map[string]Status{
		"create_configured_agent": StatusBackend,
		"create_params":           StatusException,
		"create_backend":          StatusBackend,
		"get_local_md":            StatusInvalid,
		"create_notif_map":        StatusState,
	} {
		t.Run(call, func(t *testing.T) {
			command(t, fmt.Sprintf("%s %d", call, int(status)))
			_, err := New(Config{Name: "a", Library: library})
			wantErr(t, err, status)
			if text := err.Error(); !strings.Contains(text, call) || !strings.Contains(text, meanings[status]) {
				t.Errorf("the error is %q", text)
			}
		})
	}
	command(t, "params_add -1")
	_, err := New(Config{Name: "a", Library: library, TLS: "tcp"})
	wantErr(t, err, StatusInvalid)
	command(t)
	startAgent(t, library, "a")
}

func TestCallsFail(t *testing.T) {
	library := withFake(t)
	a, b := startAgent(t, library, "a"), startAgent(t, library, "b")
	to := load(t, a, b.Metadata())
	for name, c := range map[string]struct {
		command string
		call    func() error
		want    []error
	}{
		"lost":            {"gen_notif -2", func() error { return a.Notify(within(t), to, nil) }, []error{transfer.ErrGone, StatusBackend}},
		"cannot connect":  {"agent_make_connection -2", func() error { return a.Connect(within(t), to) }, []error{transfer.ErrGone}},
		"wrong":           {"gen_notif -1", func() error { return a.Notify(within(t), to, nil) }, []error{StatusInvalid}},
		"unheard of":      {"gen_notif -77", func() error { return a.Notify(within(t), to, nil) }, []error{Status(-77)}},
		"load":            {"load_remote_md -2", func() error { return loadErr(t, a, b.Metadata()) }, []error{transfer.ErrInvalid, StatusBackend}},
		"no longer known": {"gen_notif -6", func() error { return a.Notify(within(t), to, nil) }, []error{transfer.ErrUnknownPeer, StatusNotFound}},
	} {
		t.Run(name, func(t *testing.T) {
			to = load(t, a, b.Metadata())
			command(t, c.command)
			defer command(t)
			wantErr(t, c.call(), c.want...)
		})
	}
	to = load(t, a, b.Metadata())
	mustNotify(t, a, to, "well again")
	mustReceive(t, b, a, "well again")
}

// What cannot be read once is not read twice later.
func TestFetchFails(t *testing.T) {
	library := withFake(t)
	a, b := startAgent(t, library, "a"), startAgent(t, library, "b")
	to := load(t, a, b.Metadata())
	for _, call := range []string{"get_notifs", "notif_map_get_agent_at", "notif_map_get_notifs_size"} {
		command(t, call+" -2")
		mustNotify(t, a, to, call)
		if call != "get_notifs" { // those that fail later lose what they were about to read
			settled(t, b)
		}
		command(t)
		mustNotify(t, a, to, "after "+call)
		n := receive(t, b)
		if string(n.Message) == call {
			n = receive(t, b)
		}
		if string(n.Message) != "after "+call {
			t.Fatalf("got %q", n.Message)
		}
	}
}

// settled returns when the agent has looked for messages since.
func settled(t *testing.T, a *Agent) {
	t.Helper()
	err := a.do(within(t), func() error { return a.lib.fetch(a.agent, a.list, a.receive) })
	if err != nil {
		wantErr(t, err, StatusBackend)
	}
}

// A call that hangs costs its caller no more than its deadline. What waits behind it is not sent after its own.
func TestCallHangs(t *testing.T) {
	library := withFake(t)
	a, b := startAgent(t, library, "a"), startAgent(t, library, "b")
	to := load(t, a, b.Metadata())
	command(t, "gen_notif hang")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	wantErr(t, a.Notify(ctx, to, []byte("hangs")), context.DeadlineExceeded)
	wantErr(t, a.Notify(ctx, to, []byte("behind")), context.DeadlineExceeded)
	if err := os.Remove(os.Getenv("FAKE_NIXL")); err != nil {
		t.Fatal(err)
	}
	mustReceive(t, b, a, "hangs")
	mustNotify(t, a, to, "after")
	mustReceive(t, b, a, "after")
}

func TestFullReceiver(t *testing.T) {
	library := withFake(t)
	a, b := startAgent(t, library, "a"), startAgent(t, library, "b")
	to := load(t, a, b.Metadata())
	for range transfer.QueueLength + 10 {
		mustNotify(t, a, to, "x")
		settled(t, b)
	}
	if n := len(b.Notifications()); n != transfer.QueueLength {
		t.Errorf("%d messages wait", n)
	}
}

func TestCloseFails(t *testing.T) {
	a, err := New(Config{Name: "a", Library: withFake(t)})
	if err != nil {
		t.Fatal(err)
	}
	command(t, "destroy_agent -2")
	for range 2 {
		wantErr(t, a.Close(), StatusBackend)
	}
}

func TestLibraryIsUnfit(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.so")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ library, says string }{
		"missing":         {filepath.Join(t.TempDir(), "nowhere.so"), "no such file"},
		"no library":      {empty, "too short"},
		"another version": {fakeLibrary(t, "-DOLD"), "has no function nixl_capi_create_notif_map"},
		"a stub":          {fakeLibrary(t, "-DSTUB"), "is a stub"},
		"an empty folder": {t.TempDir(), "no such file"},
		"another library": {"libc.so.6", "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(Config{Name: "a", Library: c.library})
			wantErr(t, err, ErrNoLibrary)
			if !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), c.library) {
				t.Errorf("error %q does not say %q and where", err, c.says)
			}
		})
	}
}
