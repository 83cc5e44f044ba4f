package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/batch"
)

const (
	// bodyPause is the longest wait for the next part of an upload, or for the client to read the next part of a file.
	bodyPause = time.Minute
	// maxField is the longest field of a form, without the file.
	maxField = 1 << 10
	// copyBuffer is how many bytes of files are in memory for each request.
	copyBuffer = 128 << 10
	// maxName is the longest name of a file in bytes; OpenAI documents none.
	maxName = 255
	// The time after which a file may expire, as OpenAI has it: an hour to 30 days.
	leastExpiry, mostExpiry = 3600, 30 * 24 * 3600
)

// fileObject is a file as clients see it.
type fileObject struct {
	ID        string `json:"id"`
	Object    string `json:"object"`
	Bytes     int64  `json:"bytes"`
	CreatedAt int64  `json:"created_at"`
	ExpiresAt *int64 `json:"expires_at"`
	Filename  string `json:"filename"`
	Purpose   string `json:"purpose"`
	Status    string `json:"status"` // deprecated by OpenAI, and still required by its clients
}

func toFile(f batch.File) fileObject {
	return fileObject{ID: f.ID, Object: "file", Bytes: f.Bytes, CreatedAt: f.Created / 1000, ExpiresAt: seconds(f.Expires), Filename: f.Name, Purpose: f.Purpose, Status: "processed"}
}

// form is what an upload has besides the content.
type form struct {
	purpose, name, anchor, expires string
	found                          bool // the file
	lines                          int64
}

// upload serves POST /v1/files: a form with the fields purpose and file, in any order.
func (s *Server) upload(w http.ResponseWriter, r *http.Request, tenant string) error {
	r.Body = patient(w, r)
	parts, err := r.MultipartReader()
	if err != nil {
		return invalid("file", "The request is not a form (Content-Type: multipart/form-data) with the fields purpose and file.")
	}
	var used batch.Amounts
	if s.cfg.Quota.Bytes > 0 {
		if used, err = s.store.Usage(r.Context(), tenant); err != nil {
			return err
		}
	}
	content, err := s.blobs.Create(r.Context())
	if err != nil {
		return err
	}
	defer content.Abort()
	f, err := s.readForm(parts, &intake{to: content, most: s.cfg.MaxFile, used: used, quota: s.cfg.Quota})
	if err != nil {
		return err
	}
	file := batch.File{ID: batch.NewID("file-"), Tenant: tenant, Purpose: f.purpose, Name: f.name, Lines: f.lines, Created: now()}
	if file.Expires, err = f.expiry(file.Created, s.cfg.Retention); err != nil {
		return err
	}
	part, err := content.Commit()
	if err != nil {
		return err
	}
	file.Bytes = part.Bytes
	if err := s.store.AddFile(r.Context(), file, s.cfg.Quota, part); err != nil {
		s.discard(context.WithoutCancel(r.Context()), part)
		return err
	}
	s.log.Debug("a file was uploaded", "file", file.ID, "bytes", file.Bytes)
	answer(w, http.StatusOK, toFile(file))
	return nil
}

// discard deletes content that was not stored as a file. An error of a commit does not tell whether it took place, so the database is asked.
func (s *Server) discard(ctx context.Context, content batch.Part) {
	if used, err := s.store.HasBlob(ctx, content.Blob); err == nil && !used {
		_ = s.blobs.Delete(ctx, content.Blob) // the next start deletes it otherwise
	}
}

// readForm reads the whole form, and writes the file to content.
func (s *Server) readForm(parts *multipart.Reader, content *intake) (f form, err error) {
	for {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return f, invalid("", "The form breaks off, or is not one: %v.", err)
		}
		switch name := part.FormName(); name {
		case "file":
			if f.found {
				return f, invalid("file", "The form has more than one file.")
			}
			if f.found, f.name = true, part.FileName(); f.name == "" || len(f.name) > maxName {
				return f, invalid("file", "The file has a name of %d bytes; it must have 1 to %d.", len(f.name), maxName)
			}
			if !utf8.ValidString(f.name) || strings.ContainsRune(f.name, 0) {
				return f, invalid("file", "The name of the file is not UTF-8 text.")
			}
			if err := content.copy(part); err != nil {
				return f, err
			}
			f.lines = content.lines
		case "purpose", "expires_after[anchor]", "expires_after[seconds]":
			value, err := field(part)
			if err != nil {
				return f, err
			}
			*map[string]*string{"purpose": &f.purpose, "expires_after[anchor]": &f.anchor, "expires_after[seconds]": &f.expires}[name] = value
		default:
			return f, invalid(clip(name), "The form has the unknown field %s.", strconv.QuoteToASCII(clip(name)))
		}
	}
	switch {
	case f.purpose == "":
		return f, invalid("purpose", "The form has no field purpose: it must be batch.")
	case f.purpose != batch.PurposeInput:
		return f, invalid("purpose", "purpose is %s; only files for batches are served here: it must be batch.", strconv.QuoteToASCII(clip(f.purpose)))
	case !f.found:
		return f, invalid("file", "The form has no field file.")
	}
	return f, nil
}

// intake is where the file of a form goes, with the limits of its size.
type intake struct {
	to          io.Writer
	most        int64         // bytes
	used, quota batch.Amounts // of the tenant

	bytes, lines int64
	broken       bool // the last line has no end
}

// Write counts, and ends an upload that no longer fits into the quota: it must not fill the disk.
func (i *intake) Write(text []byte) (int, error) {
	i.bytes += int64(len(text))
	if err := i.quota.Allow(i.used, batch.Amounts{Bytes: i.bytes}); err != nil {
		return 0, err
	}
	if len(text) > 0 {
		i.lines += int64(bytes.Count(text, []byte("\n")))
		i.broken = text[len(text)-1] != '\n'
	}
	return i.to.Write(text)
}

// copy copies the file of a form.
func (i *intake) copy(from io.Reader) error {
	source := &countingReader{from: io.LimitReader(from, i.most+1)}
	n, err := io.CopyBuffer(onlyWriter{i}, source, make([]byte, copyBuffer))
	if i.broken {
		i.lines++
	}
	switch {
	case source.err != nil:
		return invalid("file", "The upload breaks off after %d bytes: %v.", n, source.err)
	case err != nil:
		return fmt.Errorf("storing an upload: %w", err)
	case n > i.most:
		return &refusal{status: http.StatusRequestEntityTooLarge, param: "file", code: "file_too_large", message: fmt.Sprintf("The file has more than %d bytes: split it.", i.most)}
	case n == 0:
		return invalid("file", "The file is empty.")
	}
	return nil
}

// countingReader remembers the error of a source, to tell it from one of the destination.
type countingReader struct {
	from io.Reader
	err  error
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}

// onlyWriter hides what else a writer can do, so that io.CopyBuffer uses its buffer.
type onlyWriter struct{ io.Writer }

func field(part io.Reader) (string, error) {
	value, err := io.ReadAll(io.LimitReader(part, maxField+1))
	if err != nil {
		return "", invalid("", "The form breaks off: %v.", err)
	}
	if len(value) > maxField {
		return "", invalid("", "A field of the form has more than %d bytes.", maxField)
	}
	return string(value), nil
}

// expiry returns when the file is to be deleted, after retention if the form does not say; 0: never.
func (f form) expiry(created int64, retention time.Duration) (int64, error) {
	if f.anchor == "" && f.expires == "" {
		if retention == 0 {
			return 0, nil
		}
		return created + retention.Milliseconds(), nil
	}
	if f.anchor != "created_at" {
		return 0, invalid("expires_after", "expires_after[anchor] is %s; it must be created_at.", strconv.QuoteToASCII(clip(f.anchor)))
	}
	n, err := strconv.ParseInt(f.expires, 10, 64)
	if err != nil || n < leastExpiry || n > mostExpiry {
		return 0, invalid("expires_after", "expires_after[seconds] is %s; it must be a number from %d to %d.", strconv.QuoteToASCII(clip(f.expires)), leastExpiry, mostExpiry)
	}
	return created + 1000*n, nil
}

// patient returns the body of a request whose reads fail if nothing comes for bodyPause.
func patient(w http.ResponseWriter, r *http.Request) io.ReadCloser {
	return &patientBody{ReadCloser: r.Body, control: http.NewResponseController(w)}
}

type patientBody struct {
	io.ReadCloser
	control *http.ResponseController
}

func (b *patientBody) Read(p []byte) (int, error) {
	_ = b.control.SetReadDeadline(time.Now().Add(bodyPause)) // connections of net/http have deadlines; those of tests need none
	return b.ReadCloser.Read(p)
}

func (s *Server) file(r *http.Request, tenant string) (batch.File, error) {
	f, err := s.store.File(r.Context(), tenant, id(r))
	return f, noFile(err, id(r))
}

// noFile turns batch.ErrNotFound into what a client sees.
func noFile(err error, id string) error {
	if errors.Is(err, batch.ErrNotFound) {
		return &refusal{status: http.StatusNotFound, param: "id", message: fmt.Sprintf("No such File object: %s", strconv.QuoteToASCII(clip(id)))}
	}
	return err
}

func (s *Server) getFile(w http.ResponseWriter, r *http.Request, tenant string) error {
	f, err := s.file(r, tenant)
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, toFile(f))
	return nil
}

func (s *Server) listFiles(w http.ResponseWriter, r *http.Request, tenant string) error {
	p, err := page(r.Context(), r, 10_000, 10_000, func(ctx context.Context, id string) error {
		_, err := s.store.File(ctx, tenant, id)
		return err
	})
	if err != nil {
		return err
	}
	files, err := s.store.Files(r.Context(), tenant, r.URL.Query().Get("purpose"), p)
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, listOf(files, p, toFile, func(f batch.File) string { return f.ID }))
	return nil
}

// getContent serves the content of a file, part by part.
func (s *Server) getContent(w http.ResponseWriter, r *http.Request, tenant string) error {
	f, err := s.file(r, tenant)
	if err != nil {
		return err
	}
	parts, err := s.store.Parts(r.Context(), f.ID)
	if err == nil && len(parts) == 0 {
		err = batch.ErrNotFound // it was deleted meanwhile
	}
	if err != nil {
		return noFile(err, f.ID)
	}
	first, err := s.blobs.Open(r.Context(), parts[0].Blob, 0)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(f.Bytes, 10))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	buffer, control := make([]byte, copyBuffer), http.NewResponseController(w)
	for i := range parts {
		from := first
		if i > 0 {
			if from, err = s.blobs.Open(r.Context(), parts[i].Blob, 0); err != nil {
				break
			}
		}
		_, err = io.CopyBuffer(patientWriter{w, control}, onlyReader{from}, buffer)
		if err = errors.Join(err, from.Close()); err != nil {
			break
		}
	}
	if err != nil { // the status has been sent: only a broken connection tells the client that the content is not whole
		if r.Context().Err() == nil {
			s.log.Error("sending a file", "file", f.ID, "error", err)
		}
		panic(http.ErrAbortHandler)
	}
	return nil
}

type onlyReader struct{ io.Reader }

// patientWriter fails if the client reads nothing for bodyPause.
type patientWriter struct {
	io.Writer
	control *http.ResponseController
}

func (p patientWriter) Write(text []byte) (int, error) {
	_ = p.control.SetWriteDeadline(time.Now().Add(bodyPause)) // as for patientBody
	return p.Writer.Write(text)
}

func (s *Server) deleteFile(w http.ResponseWriter, r *http.Request, tenant string) error {
	name := id(r)
	parts, err := s.store.DeleteFile(r.Context(), tenant, name)
	if errors.Is(err, batch.ErrInUse) {
		return &refusal{status: http.StatusConflict, param: "id", code: "file_in_use", message: "The file is the input of a batch that has not ended: cancel the batch first, or wait for its end."}
	}
	if err != nil {
		return noFile(err, name)
	}
	for _, part := range parts {
		if err := s.blobs.Delete(context.WithoutCancel(r.Context()), part.Blob); err != nil {
			s.log.Warn("a deleted file takes space until the next start", "file", name, "error", err)
		}
	}
	answer(w, http.StatusOK, struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Deleted bool   `json:"deleted"`
	}{name, "file", true})
	return nil
}
