package kubelet

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// maxLine is where a line is cut in two, as container engines do.
const maxLine = 16 << 10

// logFile keeps what one run of a container prints, in a file with the lines that container engines write for kubelets:
//
//	2026-11-22T12:00:00.000000000Z stdout F what was printed
//
// P in place of F says that the line goes on in the next one. It is written by one goroutine and read by any number.
type logFile struct {
	path string
	file *os.File
	rest []byte // of a line that has not ended

	mu     sync.Mutex    // guards the fields below
	size   int64         // bytes written
	closed bool          // nothing will be added
	grown  chan struct{} // closed, and made anew, when something was added or will not be any more
}

func createLog(path string) (*logFile, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("making the log of a container: %w", err)
	}
	return &logFile{path: path, file: f, grown: make(chan struct{})}, nil
}

// Write takes output of the container.
func (l *logFile) Write(data []byte) (int, error) {
	l.rest = append(l.rest, data...)
	var lines bytes.Buffer
	now := time.Now().UTC()
	for {
		i := bytes.IndexByte(l.rest, '\n')
		switch {
		case i >= 0 && i <= maxLine:
			writeLine(&lines, now, 'F', l.rest[:i])
			l.rest = l.rest[i+1:]
			continue
		case i > maxLine || len(l.rest) > maxLine:
			writeLine(&lines, now, 'P', l.rest[:maxLine])
			l.rest = l.rest[maxLine:]
			continue
		}
		break
	}
	return len(data), l.add(lines.Bytes())
}

// logTime is RFC 3339 with nanoseconds, of which none is left out at the end.
const logTime = "2006-01-02T15:04:05.000000000Z07:00"

func writeLine(to *bytes.Buffer, now time.Time, tag byte, line []byte) {
	to.WriteString(now.Format(logTime))
	to.WriteString(" stdout ")
	to.WriteByte(tag)
	to.WriteByte(' ')
	to.Write(line)
	to.WriteByte('\n')
}

func (l *logFile) add(lines []byte) error {
	if len(lines) == 0 {
		return nil
	}
	n, err := l.file.Write(lines)
	l.change(func() { l.size += int64(n) })
	return err
}

func (l *logFile) change(do func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	do()
	close(l.grown)
	l.grown = make(chan struct{})
}

// Close ends the log with what there is of its last line.
func (l *logFile) Close() error {
	var err error
	if len(l.rest) > 0 {
		var line bytes.Buffer
		writeLine(&line, time.Now().UTC(), 'P', l.rest)
		err = l.add(line.Bytes())
		l.rest = nil
	}
	l.change(func() { l.closed = true })
	return errors.Join(err, l.file.Close())
}

// state tells how long the log is, whether it will not grow any more, and gives a channel that is closed when that changes.
func (l *logFile) state() (size int64, closed bool, grown <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.size, l.closed, l.grown
}

// entry is a line of a log.
type entry struct {
	when time.Time
	text []byte // with its newline, unless it goes on in the next
}

// parseEntry takes a line of the file apart; one that is none is kept whole.
func parseEntry(line []byte) entry {
	head, text, _ := bytes.Cut(line, []byte(" stdout "))
	when, err := time.Parse(logTime, string(head))
	if err != nil || len(text) < 2 {
		return entry{text: append(line, '\n')}
	}
	tag, text := text[0], bytes.Clone(text[2:])
	if tag == 'F' {
		text = append(text, '\n')
	}
	return entry{when, text}
}

// tail returns the last lines of what was printed, at most so many lines and bytes.
func (l *logFile) tail(lines, size int) (string, error) {
	data, err := os.ReadFile(l.path)
	if err != nil {
		return "", fmt.Errorf("reading the log of a container: %w", err)
	}
	if len(data) == 0 {
		return "", nil
	}
	all := bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))
	var text bytes.Buffer
	for _, line := range all[max(0, len(all)-lines):] {
		text.Write(parseEntry(line).text)
	}
	printed := text.Bytes()
	return string(printed[max(0, len(printed)-size):]), nil
}
