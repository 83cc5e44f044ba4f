package worker

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"slices"
	"strconv"

	"github.com/tandem-serving/tandem/batch"
	"github.com/tandem-serving/tandem/batch/store"
)

const (
	// maxProblems is how many problems of a file are told.
	maxProblems = 100
	// Chunks have at most this many lines, and end with the line that reaches chunkBytes. Small files have smaller ones, so
	// that several workers share them.
	chunkLines    = 1024
	chunkBytes    = 2 << 20
	leastBytes    = 64 << 10
	chunksOfFiles = 64
	// checkEvery is after how many lines a validation looks whether it is still wanted.
	checkEvery = 10_000
)

// errLong is returned by lineReader for a line that is longer than batch.MaxLine.
var errLong = fmt.Errorf("the line has more than %d bytes", batch.MaxLine)

// lineReader reads lines, and counts bytes. A line is valid until the next one is read.
type lineReader struct {
	from   *bufio.Reader
	long   []byte
	offset int64 // of the next line
}

func newLineReader(from io.Reader) *lineReader {
	return &lineReader{from: bufio.NewReaderSize(from, 256<<10)}
}

// next returns the next line without its end. io.EOF: there is none.
func (r *lineReader) next() ([]byte, error) {
	r.long = r.long[:0]
	for {
		part, err := r.from.ReadSlice('\n')
		r.offset += int64(len(part))
		switch {
		case err == nil && len(r.long) == 0:
			return trimEnd(part), nil
		case errors.Is(err, bufio.ErrBufferFull), err == nil, errors.Is(err, io.EOF) && len(part)+len(r.long) > 0:
			if len(r.long)+len(part) > batch.MaxLine {
				return nil, errLong
			}
			r.long = append(r.long, part...)
			if !errors.Is(err, bufio.ErrBufferFull) {
				return trimEnd(r.long), nil
			}
		default:
			return nil, err
		}
	}
}

func trimEnd(line []byte) []byte {
	return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
}

// byteOrderMark may begin a file that was written on Windows.
var byteOrderMark = []byte("\xef\xbb\xbf")

// validation reads an input file once, and collects what a batch needs to know of it.
type validation struct {
	endpoint   string
	most       int64 // lines
	chunkBytes int64

	parser   batch.Parser
	seed     maphash.Seed
	ids      []identity
	chunks   []store.Chunk
	current  store.Chunk
	model    string
	problems []batch.Problem
}

// identity stands for a custom_id. A million of them take 16 MB.
type identity struct {
	hash uint64
	line int64 // physical, from 1
}

func newValidation(endpoint string, most, bytes int64) *validation {
	return &validation{endpoint: endpoint, most: most, seed: maphash.MakeSeed(), chunkBytes: min(max(bytes/chunksOfFiles, leastBytes), chunkBytes)}
}

// read reads the whole file. check is called now and then; its error ends the validation. The error is one of reading: what is wrong
// with the file is in problems.
func (v *validation) read(from io.Reader, check func() error) error {
	lines := newLineReader(from)
	for number := int64(1); len(v.problems) < maxProblems; number++ {
		start := lines.offset
		line, err := lines.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if errors.Is(err, errLong) {
			v.add(batch.Problem{Code: "line_too_long", Message: fmt.Sprintf("The line has more than %d bytes.", batch.MaxLine), Line: number})
			break
		}
		if err != nil {
			return err
		}
		if number%checkEvery == 0 {
			if err := check(); err != nil {
				return err
			}
		}
		if number == 1 {
			line = bytes.TrimPrefix(line, byteOrderMark)
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if int64(len(v.ids)) == v.most {
			v.add(batch.Problem{Code: "too_many_lines", Message: fmt.Sprintf("The file has more than %d requests: split it.", v.most)})
			break
		}
		v.line(line, number)
		v.extend(start, lines.offset)
	}
	v.close()
	if len(v.ids) == 0 && len(v.problems) == 0 {
		v.add(batch.Problem{Code: "empty_file", Message: "The input file has no requests."})
	}
	return nil
}

func (v *validation) add(p batch.Problem) { v.problems = append(v.problems, p) }

// line checks one line.
func (v *validation) line(text []byte, number int64) {
	line, problem := v.parser.Parse(text)
	switch {
	case problem != nil:
	case line.Endpoint != v.endpoint:
		problem = &batch.Problem{Code: "mismatched_url", Param: "url", Message: fmt.Sprintf("url is %s, and the endpoint of the batch is %s.", strconv.QuoteToASCII(clip(line.Endpoint)), v.endpoint)}
	case v.model != "" && line.Model != v.model:
		problem = &batch.Problem{Code: "mismatched_model", Param: "body.model", Message: fmt.Sprintf("body.model is %s, and %s in the lines before: a batch is for one model.",
			strconv.QuoteToASCII(clip(line.Model)), strconv.QuoteToASCII(clip(v.model)))}
	default:
		v.model = line.Model
	}
	if problem != nil {
		problem.Line = number
		v.add(*problem)
	}
	v.ids = append(v.ids, identity{maphash.String(v.seed, line.CustomID), number})
	if problem != nil && line.CustomID == "" {
		v.ids[len(v.ids)-1].line = 0 // it has none to compare
	}
}

// extend adds the line between two offsets to the current chunk.
func (v *validation) extend(start, end int64) {
	c := &v.current
	if c.Lines == 0 {
		c.Start, c.First = start, int64(len(v.ids))-1
	}
	c.Lines++
	c.Bytes = end - c.Start
	if c.Lines == chunkLines || c.Bytes >= v.chunkBytes {
		v.close()
	}
}

func (v *validation) close() {
	if v.current.Lines > 0 {
		v.chunks = append(v.chunks, v.current)
		v.current = store.Chunk{}
	}
}

// duplicates returns the lines, but the first, of each group whose custom_ids have the same hash: most likely, they are the same.
func (v *validation) duplicates() map[int64]int64 {
	slices.SortFunc(v.ids, func(a, b identity) int { return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.line, b.line)) })
	suspects := map[int64]int64{}
	for i := 1; i < len(v.ids) && len(suspects) < maxProblems; i++ {
		if before := v.ids[i-1]; before.hash == v.ids[i].hash && before.line > 0 && v.ids[i].line > 0 {
			suspects[v.ids[i].line] = before.line
		}
	}
	return suspects
}

// compare reads the file again, up to the last suspect, and reports the suspects that do have the custom_id of the line before them. It does not
// read on, because read may have stopped there at a line that is too long.
func (v *validation) compare(from io.Reader, suspects map[int64]int64) error {
	wanted, ids := map[int64]bool{}, map[int64]string{}
	for line, before := range suspects {
		wanted[line], wanted[before] = true, true
	}
	lines := newLineReader(from)
	for number := int64(1); len(ids) < len(wanted); number++ {
		text, err := lines.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if !wanted[number] {
			continue
		}
		if number == 1 {
			text = bytes.TrimPrefix(text, byteOrderMark)
		}
		line, _ := v.parser.Parse(text)
		ids[number] = line.CustomID
		if before, suspect := suspects[number]; suspect && ids[before] == line.CustomID && len(v.problems) < maxProblems {
			v.add(batch.Problem{Code: "duplicate_custom_id", Param: "custom_id", Line: number,
				Message: fmt.Sprintf("custom_id %s is that of line %d too: each line needs its own.", strconv.QuoteToASCII(clip(line.CustomID)), before)})
		}
	}
	return nil
}

// validate validates the input file of a batch.
func (w *Worker) validate(ctx context.Context, b store.Open) error {
	epoch, err := w.store.LeaseValidation(ctx, b.ID, b.Epoch)
	if err != nil {
		return err
	}
	if err = w.judge(ctx, b, epoch); err != nil && !errors.Is(err, store.ErrLost) {
		w.giveBack(ctx, func(ctx context.Context) error { return w.store.ReleaseValidation(ctx, b.ID, epoch) })
	}
	return err
}

// judge reads the input file of a batch whose validation is leased, and has the batch begin or fail.
func (w *Worker) judge(ctx context.Context, b store.Open, epoch int64) error {
	parts, err := w.store.Parts(ctx, b.InputFile)
	if err == nil && len(parts) != 1 {
		err = fmt.Errorf("the input file %s has %d parts", b.InputFile, len(parts))
	}
	if err != nil {
		return err
	}
	v := newValidation(b.Endpoint, w.cfg.MaxLines, parts[0].Bytes)
	check := func() error { return w.store.RenewValidation(ctx, b.ID, epoch) }
	pass := func(read func(io.Reader) error) error {
		from, err := w.blobs.Open(ctx, parts[0].Blob, 0)
		if err != nil {
			return err
		}
		defer from.Close()
		return read(from)
	}
	err = pass(func(from io.Reader) error { return v.read(from, check) })
	if suspects := v.duplicates(); err == nil && len(suspects) > 0 {
		err = pass(func(from io.Reader) error { return v.compare(from, suspects) })
	}
	switch {
	case err != nil:
		return fmt.Errorf("validating batch %s: %w", b.ID, err)
	case len(v.problems) > 0:
		slices.SortStableFunc(v.problems, func(a, b batch.Problem) int { return cmp.Compare(a.Line, b.Line) })
		w.log.Info("the input file of a batch is invalid", "batch", b.ID, "problems", len(v.problems), "line", v.problems[0].Line, "code", v.problems[0].Code)
		return w.store.Fail(ctx, b.ID, epoch, v.problems, w.now())
	}
	w.log.Info("a batch begins", "batch", b.ID, "lines", len(v.ids), "chunks", len(v.chunks), "endpoint", b.Endpoint)
	return w.store.Begin(ctx, b.ID, epoch, v.model, v.chunks, w.now())
}

// clip shortens a text of the user's for messages.
func clip(text string) string {
	const most = 1000
	return text[:min(len(text), most)]
}
