package batch

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime/multipart"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/tandem/client"
)

// answerLimit bounds answers that are not files. A page of a hundred batches with a hundred problems each has less.
const answerLimit = 16 << 20

func (s serverFlags) base() (string, error) { return client.BaseURL(s.URL) }

func (s serverFlags) key() (string, error) {
	if s.Key == "" {
		return "", nil
	}
	return boot.ReadLine(s.Key, "the key")
}

// server is a server of the Batch API.
type server struct {
	base, key string
	patience  time.Duration
	http      *http.Client
}

func newServer(s serverFlags) (*server, error) {
	base, err := s.base()
	if err != nil {
		return nil, boot.Configf("url: %w", err)
	}
	key, err := s.key()
	if err != nil {
		return nil, boot.Configf("api-key-file: %w", err)
	}
	tlsOf, err := boot.ClientTLS(boot.PeerTLS{CAFile: s.CA}, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	var config *tls.Config
	if strings.HasPrefix(base, "https:") {
		config = tlsOf()
	}
	return &server{base: base, key: key, patience: s.Timeout, http: &http.Client{
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, DialContext: (&net.Dialer{Timeout: s.Timeout}).DialContext},
		// A redirect would take the key elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}, nil
}

func (s *server) close() { s.http.CloseIdleConnections() }

// refusal is an error that the server answered.
type refusal struct {
	status  int
	message string
}

func (r *refusal) Error() string {
	return fmt.Sprintf("the server refused (%d): %s", r.status, r.message)
}

// temporary reports whether the same call may succeed later.
func temporary(err error) bool {
	var refused *refusal
	if errors.As(err, &refused) {
		return refused.status >= 500 || refused.status == http.StatusTooManyRequests
	}
	return true
}

// do sends a request, with a body of a known length if it is not nil. It ends if for the patience nothing of the body is read, and nothing of
// the answer comes.
func (s *server) do(ctx context.Context, method, path, contentType string, body io.Reader, length int64) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(s.patience, func() { cancel(fmt.Errorf("nothing came for %v", s.patience)) })
	keep := func() { late.Reset(s.patience) }
	end := func() {
		late.Stop()
		cancel(nil)
	}
	if body != nil {
		body = watched{body, keep}
	}
	request, err := http.NewRequestWithContext(ctx, method, s.base+path, body)
	if err != nil {
		end()
		return nil, fmt.Errorf("making the request: %w", err)
	}
	if body != nil {
		request.ContentLength = length
		request.Header.Set("Content-Type", contentType)
	}
	if s.key != "" {
		request.Header.Set("Authorization", "Bearer "+s.key)
	}
	answer, err := s.http.Do(request)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		end()
		return nil, boot.Missingf("calling %s: %w (check --url, and that the server runs)", s.base, err)
	}
	answer.Body = &endingBody{watched{answer.Body, keep}, answer.Body, end}
	if answer.StatusCode == http.StatusOK {
		return answer, nil
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, answerLimit)) // of a part, the status is still known
	return nil, &refusal{answer.StatusCode, messageOf(text, answer.Status)}
}

// watched calls keep for each part that is read.
type watched struct {
	io.Reader
	keep func()
}

func (w watched) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if n > 0 {
		w.keep()
	}
	return n, err
}

// endingBody ends the context of its request when it is closed.
type endingBody struct {
	io.Reader
	body io.Closer
	end  func()
}

func (b *endingBody) Close() error {
	defer b.end()
	return b.body.Close()
}

// messageOf returns what an error in OpenAI's form says.
func messageOf(text []byte, status string) string {
	var answer struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(text, &answer) == nil && answer.Error.Message != "" {
		return printable(answer.Error.Message)
	}
	return status
}

// call calls the API with a JSON body, and reads the answer.
func (s *server) call(ctx context.Context, method, path string, body, into any) error {
	var content io.Reader
	var length int64
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("making the request: %w", err)
		}
		content, length = bytes.NewReader(text), int64(len(text))
	}
	answer, err := s.do(ctx, method, path, "application/json", content, length)
	if err != nil {
		return err
	}
	return readAnswer(answer, into)
}

func readAnswer(answer *http.Response, into any) error {
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, answerLimit))
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return fmt.Errorf("reading the server's answer: %w", err)
	}
	return nil
}

// upload uploads an input file of a known size, and returns its id. sent is called with the bytes that were read so far.
func (s *server) upload(ctx context.Context, file io.Reader, name string, bytesOf int64, sent func(int64)) (string, error) {
	var head bytes.Buffer
	form := multipart.NewWriter(&head)
	err := form.WriteField("purpose", "batch")
	if err == nil {
		_, err = form.CreateFormFile("file", filepath.Base(name))
	}
	if err != nil {
		return "", fmt.Errorf("making the form: %w", err)
	}
	start := head.Len()
	if err := form.Close(); err != nil {
		return "", fmt.Errorf("making the form: %w", err)
	}
	text := head.Bytes()
	counted := &counter{Reader: io.LimitReader(file, bytesOf), sent: sent}
	body := io.MultiReader(bytes.NewReader(text[:start]), counted, bytes.NewReader(text[start:]))
	answer, err := s.do(ctx, http.MethodPost, "/v1/files", form.FormDataContentType(), body, int64(len(text))+bytesOf)
	if err != nil {
		return "", err
	}
	var uploaded struct {
		ID string `json:"id"`
	}
	err = readAnswer(answer, &uploaded)
	return uploaded.ID, err
}

// counter tells how much was read.
type counter struct {
	io.Reader
	n    int64
	sent func(int64)
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	c.sent(c.n)
	return n, err
}

// download writes the content of a file, and returns its size.
func (s *server) download(ctx context.Context, id string, to io.Writer) (int64, error) {
	answer, err := s.do(ctx, http.MethodGet, "/v1/files/"+url.PathEscape(id)+"/content", "", nil, 0)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	n, err := io.Copy(to, answer.Body)
	if err != nil {
		return n, fmt.Errorf("fetching file %s: %w after %s", id, err, size(n))
	}
	return n, nil
}

func batchPath(id string) string { return "/v1/batches/" + url.PathEscape(id) }

// printable replaces what would move a terminal's cursor.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}

// safeName makes a name of a file from an id that a server has sent.
func safeName(id string) string {
	return strings.Map(func(r rune) rune {
		if r == '_' || r == '-' || r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r)) {
			return r
		}
		return '_'
	}, id)
}

// size returns a number of bytes for people.
func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d bytes", n)
}
