package zmtp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// router is what a ROUTER socket sends before its answer.
var router = string(greeting[:]) + string(appendFrame(nil, flagCommand, routerReady))

// parts is a message.
func parts(list ...string) string {
	var b []byte
	for i, p := range list {
		flags := byte(flagMore)
		if i == len(list)-1 {
			flags = 0
		}
		b = appendFrame(b, flags, []byte(p))
	}
	return string(b)
}

// peer listens, sends the same bytes to every client, and records what it receives. It closes its half of the connection
// when the client does, or with hangsUp after its bytes.
func peer(t testing.TB, says string, hangsUp bool) (address string, told func() string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	var mu sync.Mutex
	var heard bytes.Buffer
	serve := func(c net.Conn) {
		defer c.Close()
		if _, err := io.WriteString(c, says); err != nil {
			return
		}
		if hangsUp {
			_ = c.(*net.TCPConn).CloseWrite() // the other side may have gone
		}
		b, _ := io.ReadAll(c)
		mu.Lock()
		defer mu.Unlock()
		heard.Write(b)
	}
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { serve(c) })
		}
	})
	stop := sync.OnceFunc(func() {
		l.Close()
		serving.Wait()
	})
	t.Cleanup(stop)
	return l.Addr().String(), func() string {
		stop()
		mu.Lock()
		defer mu.Unlock()
		return heard.String()
	}
}

func TestAsk(t *testing.T) {
	long := strings.Repeat("x", 300)
	for name, c := range map[string]struct {
		says string
		want []string
	}{
		"one part":                       {router + parts("", "yes"), []string{"yes"}},
		"two parts":                      {router + parts("", "yes", "no"), []string{"yes", "no"}},
		"an empty one":                   {router + parts("", ""), []string{""}},
		"a long one":                     {router + parts("", long), []string{long}},
		"a short one with a long length": {router + parts("", "")[:2] + "\x02\x00\x00\x00\x00\x00\x00\x00\x01x", []string{"x"}},
		"a heartbeat before":             {router + string(appendFrame(nil, flagCommand, []byte("\x04PING\x00\x0ahello"))) + parts("", "yes"), []string{"yes"}},
		"a newer version":                {strings.Replace(router, "\x7f\x03\x00", "\x7f\x03\x01", 1) + parts("", "yes"), []string{"yes"}},
	} {
		t.Run(name, func(t *testing.T) {
			address, told := peer(t, c.says, false)
			answer, err := Ask(within(t), new(net.Dialer), address, []byte("question"), 1000)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range answer {
				got = append(got, string(p))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if asked := told(); !strings.HasSuffix(asked, parts("", "question")) || !strings.Contains(asked, "Socket-Type\x00\x00\x00\x03REQ") {
				t.Errorf("asked %q", asked)
			}
		})
	}
}

func TestAskIsNotAnswered(t *testing.T) {
	for name, c := range map[string]struct {
		says string
		want error
		text string
	}{
		"hangs up":            {"", ErrProtocol, "greeting"},
		"speaks HTTP":         {"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", ErrProtocol, "greets with"},
		"an old version":      {strings.Replace(router, "\x7f\x03\x00", "\x7f\x01\x00", 1), ErrProtocol, "greets with"},
		"wants a password":    {strings.Replace(router, "NULL\x00", "PLAIN", 1), ErrProtocol, "PLAIN"},
		"refuses":             {string(greeting[:]) + string(appendFrame(nil, flagCommand, []byte("\x05ERROR\x03no!"))), ErrProtocol, "no!"},
		"ends before it does": {router, io.EOF, "answer"},
		"ends within":         {router + parts("", "yes")[:3], io.EOF, "answer"},
		"ends within a part":  {router + parts("", "yes")[:5], io.ErrUnexpectedEOF, "answer"},
		"no delimiter":        {router + parts("yes"), ErrProtocol, "delimiter"},
		"too long":            {router + parts("", strings.Repeat("x", 1000)), ErrProtocol, "too long"},
		"far too long":        {router + "\x02\xff\xff\xff\xff\xff\xff\xff\xff", ErrProtocol, "too long"},
		"too many":            {router + strings.Repeat("\x01\x00", 1000), ErrProtocol, "too long"},
		"nonsense":            {router + "\xf0", ErrProtocol, "flags"},
	} {
		t.Run(name, func(t *testing.T) {
			address, _ := peer(t, c.says, true)
			_, err := Ask(within(t), new(net.Dialer), address, nil, 1000)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), address) {
				t.Errorf("got %v, want %v with %q", err, c.want, c.text)
			}
		})
	}
}

// A peer that does not answer delays the caller only until its deadline.
func TestAskEnds(t *testing.T) {
	address, _ := peer(t, router, false)
	for name, c := range map[string]struct {
		ctx  func() (context.Context, context.CancelFunc)
		want error
	}{
		"deadline": {func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(t.Context(), 20*time.Millisecond)
		}, context.DeadlineExceeded},
		"cancelled": {func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			return ctx, cancel
		}, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := c.ctx()
			defer cancel()
			if _, err := Ask(ctx, new(net.Dialer), address, nil, 1000); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

func TestAskMany(t *testing.T) {
	var asking sync.WaitGroup
	for i := range 100 {
		want := fmt.Sprint(i)
		address, _ := peer(t, router+parts("", want), false)
		asking.Go(func() {
			answer, err := Ask(within(t), new(net.Dialer), address, nil, 1000)
			if err != nil || len(answer) != 1 || string(answer[0]) != want {
				t.Errorf("got %q, %v", answer, err)
			}
		})
	}
	asking.Wait()
}

// FuzzAnswer checks that the reader respects its limit, and returns only bytes that were sent.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{parts("", "yes"), parts("", "a", strings.Repeat("x", 300)), parts("x"), "\x04\x06\x05READY", "\x02\x00\x00\x00\x00\x00\x00\x00\x01x"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 1 << 10
		r := reader{bufio.NewReader(bytes.NewReader(b)), limit}
		answer, err := r.message()
		if err != nil {
			return
		}
		size := 0
		for _, p := range answer {
			size += len(p) + frameCost
			if !bytes.Contains(b, p) {
				t.Fatalf("%q was read out of %q", p, b)
			}
		}
		if size > limit {
			t.Fatalf("%d bytes were taken", size)
		}
	})
}
