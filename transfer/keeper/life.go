package keeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tandem-serving/tandem/transfer"
)

// life is one process, from start to end.
type life struct {
	limit   time.Duration
	about   string
	process *os.Process
	command *exec.Cmd
	said    *tail
	conn    net.Conn

	writing sync.Mutex // separate from mu: answers are read while a request waits to be written

	mu      sync.Mutex // guards the fields below
	next    uint64
	waiting map[uint64]*waiter
	over    bool
}

// waiter is a call without an answer so far.
type waiter struct {
	answer chan reply // has a buffer of one; closed without an answer if the process ended
	hung   *time.Timer
}

// greetLimit bounds the start of the process, which opens some 120 shared objects.
const greetLimit = 30 * time.Second

// endGrace is how long a process may take to end by itself.
const endGrace = time.Second

// errEnded means that the result of the call is unknown.
var errEnded = fmt.Errorf("%w: it ended before it answered", ErrDown)

func (k *Keeper) start() (*life, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("making a socket: %w", err)
	}
	defer theirs.Close()
	l := &life{limit: k.config.CallLimit, said: &tail{}, conn: ours, waiting: map[uint64]*waiter{}}
	l.command = exec.Command(k.config.Path, k.config.Args...)
	l.command.ExtraFiles = []*os.File{theirs} // becomes SocketFD
	l.command.Stdout, l.command.Stderr = l.said, l.said
	// Processes that it started must not keep its output open.
	l.command.WaitDelay = time.Second
	if err := l.command.Start(); err != nil {
		ours.Close()
		return nil, fmt.Errorf("starting the keeper process: %w", err)
	}
	l.process = l.command.Process
	return l, nil
}

// socketPair returns two ends of a Unix socket without a name, so no other process can connect.
func socketPair() (ours net.Conn, theirs *os.File, err error) {
	syscall.ForkLock.RLock() // a process started in between would inherit both ends
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, err
	}
	mine, theirs := os.NewFile(uintptr(fds[0]), "keeper"), os.NewFile(uintptr(fds[1]), "keeper")
	defer mine.Close()
	if ours, err = net.FileConn(mine); err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return ours, theirs, nil
}

// greet waits for the greeting.
func (l *life) greet(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { l.conn.Close() })()
	if err := l.conn.SetReadDeadline(time.Now().Add(greetLimit)); err != nil {
		return err
	}
	var r reply
	if err := readFrame(l.conn, &r); err != nil {
		return fmt.Errorf("waiting for its greeting: %w", err)
	}
	if r.Hello == nil || r.Hello.About == "" && r.Hello.Error == "" {
		return errors.New("its first message is not a greeting")
	}
	if r.Hello.Error != "" {
		return errors.New(r.Hello.Error)
	}
	l.about = r.Hello.About
	return l.conn.SetReadDeadline(time.Time{})
}

// read reads answers and messages until the process or ctx ends.
func (l *life) read(ctx context.Context, receive func(transfer.Notification)) error {
	defer context.AfterFunc(ctx, func() { l.conn.Close() })()
	for {
		var r reply
		if err := readFrame(l.conn, &r); err != nil {
			return err
		}
		if r.Notice {
			receive(transfer.Notification{From: r.Peer, Message: r.Data})
			continue
		}
		l.answer(r)
	}
}

// answer passes a reply to its waiter, if the caller still waits.
func (l *life) answer(r reply) {
	l.mu.Lock()
	w := l.waiting[r.ID]
	delete(l.waiting, r.ID)
	l.mu.Unlock()
	if w != nil {
		w.hung.Stop()
		w.answer <- r
	}
}

// ask sends a request and waits for its answer.
func (l *life) ask(ctx context.Context, r request) (reply, error) {
	w, err := l.send(r)
	if err != nil {
		return reply{}, err
	}
	select {
	case answer, ok := <-w.answer:
		if !ok {
			return reply{}, errEnded
		}
		return answer, answer.err()
	case <-ctx.Done():
		return reply{}, context.Cause(ctx)
	}
}

// tell sends a request and ignores its answer. A process that is down has nothing to forget.
func (l *life) tell(r request) { _, _ = l.send(r) }

// send writes a request. If the process does not read or answer it within the limit, the process is killed.
func (l *life) send(r request) (*waiter, error) {
	w := &waiter{answer: make(chan reply, 1), hung: time.AfterFunc(l.limit, l.kill)}
	if err := l.expect(&r, w); err != nil {
		w.hung.Stop()
		return nil, err
	}
	if err := l.write(r); err != nil {
		l.answer(reply{ID: r.ID}) // removes the waiter
		return nil, err
	}
	return w, nil
}

// expect numbers a request and registers its waiter.
func (l *life) expect(r *request, w *waiter) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return errEnded
	}
	l.next++
	r.ID = l.next
	l.waiting[r.ID] = w
	return nil
}

func (l *life) write(r request) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	err := l.conn.SetWriteDeadline(time.Now().Add(l.limit))
	if err == nil {
		err = writeFrame(l.conn, r)
	}
	if err == nil || errors.Is(err, transfer.ErrInvalid) {
		return err
	}
	l.conn.Close() // a part of a frame may have been written
	return fmt.Errorf("%w: the keeper process takes no calls: %w", transfer.ErrGone, err)
}

// kill ends a process that hangs; read notices it.
func (l *life) kill() {
	l.said.add([]byte(" (it did not answer, and was killed)"))
	_ = l.process.Kill() // it may have ended just now
}

// end makes sure that the process has ended, and returns the cause. Callers that wait for an answer get an error at once.
func (l *life) end(cause error) error {
	l.conn.Close() // makes the process end by itself
	l.mu.Lock()
	l.over = true
	waiting := l.waiting
	l.waiting = nil
	l.mu.Unlock()
	for _, w := range waiting {
		w.hung.Stop()
		close(w.answer)
	}
	dawdles := time.AfterFunc(endGrace, l.kill)
	_ = l.command.Wait() // the exit status is in the state
	dawdles.Stop()
	err := fmt.Errorf("%w (%v)", cause, l.command.ProcessState)
	if said := l.said.String(); said != "" {
		err = fmt.Errorf("%w; its last output: %s", err, said)
	}
	return err
}

// tail keeps the end of the process's output, which may show why it died.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailLength = 2 << 10 // bytes

func (t *tail) Write(p []byte) (int, error) {
	t.add(p)
	return len(p), nil
}

func (t *tail) add(p []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if extra := len(t.text) - tailLength; extra > 0 {
		t.text = bytes.Clone(t.text[extra:])
	}
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(strings.Fields(strings.ToValidUTF8(string(t.text), "?")), " ")
}
