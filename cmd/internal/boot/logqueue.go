package boot

import (
	"bytes"
	"io"
	"sync"
	"time"
)

const (
	// queueLimit bounds the log lines that wait to be written (bytes). It is some seconds of a busy program at debug level, and
	// hours at info level.
	queueLimit = 1 << 20
	// pieceLimit is PIPE_BUF of Linux (bytes): a write of at most so many to a pipe is not mixed with those of another process.
	pieceLimit = 4096
	// exitLimit is how long the end of a program waits for its last log lines to be written.
	exitLimit = 2 * time.Second
)

// logQueue is a writer of log lines that does not wait until they are written. Whatever reads a program's stderr, as the container
// runtime does, stops while the node's disk stalls. Without the queue, each goroutine that logs would wait for the disk then, and all
// requests with them.
//
// One goroutine writes what waits, and ends when that is done. If more than queueLimit bytes wait, further lines are dropped and
// counted. As soon as lines are written again, a line says how many were dropped. A process that crashes may lose the lines of its
// last moment.
type logQueue struct {
	out io.Writer

	mu      sync.Mutex    // guards the fields below
	lines   []byte        // that the goroutine has not taken yet
	spare   []byte        // memory of lines that are written
	waiting int           // bytes of all lines that are not written, those that the goroutine has taken included
	idle    chan struct{} // closed when the goroutine ends; nil: there is none
	dropped uint64        // lines, those that could not be written included
	told    uint64        // of these, lines that the log has told of
	tell    func(lines uint64) []byte
}

// Write queues one or more whole lines, or drops them. It returns no error.
func (q *logQueue) Write(lines []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting+len(lines) > queueLimit {
		q.dropped += countLines(lines)
		return len(lines), nil
	}
	q.waiting += len(lines)
	q.lines = append(q.lines, lines...)
	if q.idle == nil {
		q.idle = make(chan struct{})
		go q.drain()
	}
	return len(lines), nil
}

func countLines(text []byte) uint64 { return uint64(bytes.Count(text, []byte("\n"))) }

// tellDropped has f make the line that says how many lines were dropped.
func (q *logQueue) tellDropped(f func(lines uint64) []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.tell = f
}

// drain writes until no line waits.
func (q *logQueue) drain() {
	failed := false // an output that takes no line is not told of it until there is another line to write
	for {
		lines, dropped, tell := q.take(failed)
		if lines == nil {
			return
		}
		failed = !q.write(lines)
		if dropped > 0 && q.writeNotice(tell, dropped) != nil {
			failed = true
		}
		q.free(lines)
	}
}

// take returns the lines that wait, and how many lines were dropped that the log has not told of. It returns nil lines if there is
// nothing to write: the goroutine has to end then.
func (q *logQueue) take(failed bool) (lines []byte, dropped uint64, tell func(uint64) []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.tell != nil {
		dropped = q.dropped - q.told
	}
	if len(q.lines) == 0 && (dropped == 0 || failed) {
		close(q.idle)
		q.idle = nil
		return nil, 0, nil
	}
	lines = q.lines
	if lines == nil {
		lines = []byte{}
	}
	q.lines, q.spare = q.spare, nil
	return lines, dropped, q.tell
}

// write writes lines, in pieces of whole lines, and reports whether all were written.
func (q *logQueue) write(lines []byte) (ok bool) {
	ok = true
	for len(lines) > 0 {
		piece := firstPiece(lines)
		lines = lines[len(piece):]
		_, err := q.out.Write(piece)
		q.mu.Lock()
		q.waiting -= len(piece)
		if err != nil { // such as a full disk
			ok = false
			q.dropped += countLines(piece)
		}
		q.mu.Unlock()
	}
	return ok
}

// firstPiece returns the lines at the beginning of a text that are at most pieceLimit bytes together, or one line that is longer.
func firstPiece(lines []byte) []byte {
	if len(lines) <= pieceLimit {
		return lines
	}
	if end := bytes.LastIndexByte(lines[:pieceLimit], '\n'); end >= 0 {
		return lines[:end+1]
	}
	if end := bytes.IndexByte(lines, '\n'); end >= 0 {
		return lines[:end+1]
	}
	return lines
}

// writeNotice writes the line about dropped lines.
func (q *logQueue) writeNotice(tell func(uint64) []byte, dropped uint64) error {
	if text := tell(dropped); len(text) > 0 { // it has none if warnings are not logged
		if _, err := q.out.Write(text); err != nil {
			return err
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.told += dropped
	return nil
}

// free keeps the memory of written lines for others, unless it is much.
func (q *logQueue) free(lines []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if cap(lines) <= queueLimit/4 {
		q.spare = lines[:0]
	}
}

// flush waits until no line waits, for at most limit.
func (q *logQueue) flush(limit time.Duration) {
	q.mu.Lock()
	idle := q.idle
	q.mu.Unlock()
	if idle == nil {
		return
	}
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-idle:
	case <-late.C:
	}
}

// lost returns how many lines were dropped. A nil queue drops none.
func (q *logQueue) lost() uint64 {
	if q == nil {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.dropped
}
