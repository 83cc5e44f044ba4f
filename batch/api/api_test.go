package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/batch"
	"github.com/tandem-serving/tandem/batch/api"
	"github.com/tandem-serving/tandem/batch/blob"
	"github.com/tandem-serving/tandem/batch/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// service is a Server behind HTTP.
type service struct {
	t       *testing.T
	url     string
	store   *store.Store
	blobs   *blob.Dir
	changed atomic.Int64
}

func serve(t *testing.T, cfg api.Config) *service {
	t.Helper()
	dir := t.TempDir()
	s, err := store.OpenSQLite(t.Context(), filepath.Join(dir, "batch.db"))
	if err != nil {
		t.Fatal(err)
	}
	blobs, err := blob.Open(filepath.Join(dir, "files"))
	if err != nil {
		t.Fatal(err)
	}
	served := &service{t: t, store: s, blobs: blobs}
	cfg.Changed = func() { served.changed.Add(1) }
	if cfg.MaxFile == 0 {
		cfg.MaxFile = 1 << 20
	}
	server := httptest.NewServer(api.New(cfg, s, blobs, slog.New(slog.DiscardHandler)).Handler())
	t.Cleanup(func() {
		server.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	served.url = server.URL
	return served
}

// call sends a request, and returns the status and the answer.
func (s *service) call(method, path, key, contentType string, body io.Reader) (int, map[string]any) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	r.Header.Set("Content-Type", contentType)
	return s.do(r)
}

func (s *service) do(r *http.Request) (int, map[string]any) {
	s.t.Helper()
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	if answer.Header.Get("Content-Type") != "application/json" {
		return answer.StatusCode, map[string]any{"content": string(text)}
	}
	var object map[string]any
	if err := json.Unmarshal(text, &object); err != nil {
		s.t.Fatalf("%s: %v", text, err)
	}
	return answer.StatusCode, object
}

func (s *service) json(method, path, key, body string) (int, map[string]any) {
	s.t.Helper()
	return s.call(method, path, key, "application/json", strings.NewReader(body))
}

// field is a field of a form; one with a file name is a file.
type field struct{ name, value, file string }

func (s *service) form(key string, fields ...field) (int, map[string]any) {
	s.t.Helper()
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	for _, f := range fields {
		create := w.CreateFormField
		if f.file != "" {
			create = func(name string) (io.Writer, error) { return w.CreateFormFile(name, f.file) }
		}
		part, err := create(f.name)
		if err == nil {
			_, err = io.WriteString(part, f.value)
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		s.t.Fatal(err)
	}
	return s.call("POST", "/v1/files", key, w.FormDataContentType(), &body)
}

func (s *service) upload(key, content string) string {
	s.t.Helper()
	status, f := s.form(key, field{"purpose", "batch", ""}, field{"file", content, "in.jsonl"})
	if status != 200 {
		s.t.Fatal(status, f)
	}
	return f["id"].(string)
}

// mustRefuse fails unless an answer is an error of OpenAI's form.
func mustRefuse(t *testing.T, status int, object map[string]any, want int, param, text string) {
	t.Helper()
	e, _ := object["error"].(map[string]any)
	kind := "invalid_request_error"
	if want >= 500 {
		kind = "server_error"
	}
	for _, member := range []string{"message", "type", "param", "code"} {
		if _, has := e[member]; !has {
			t.Errorf("the error has no %s: %v", member, object)
		}
	}
	got, _ := e["param"].(string)
	if message, _ := e["message"].(string); status != want || e["type"] != kind || got != param || !strings.Contains(message, text) {
		t.Errorf("%d %v, want %d about %q with %q", status, object, want, param, text)
	}
}

func TestFiles(t *testing.T) {
	s := serve(t, api.Config{})
	const content = "{}\n{}\n"
	status, f := s.form("a", field{"file", content, "in.jsonl"}, field{"purpose", "batch", ""}, field{"expires_after[anchor]", "created_at", ""}, field{"expires_after[seconds]", "3600", ""})
	if status != 200 || f["object"] != "file" || f["bytes"] != 6.0 || f["filename"] != "in.jsonl" || f["purpose"] != "batch" || f["status"] != "processed" {
		t.Fatal(status, f)
	}
	if f["expires_at"].(float64)-f["created_at"].(float64) != 3600 {
		t.Errorf("created at %v, expires at %v", f["created_at"], f["expires_at"])
	}
	id := f["id"].(string)
	if status, got := s.json("GET", "/v1/files/"+id, "a", ""); status != 200 || fmt.Sprint(got) != fmt.Sprint(f) {
		t.Errorf("%d %v, want %v", status, got, f)
	}
	if status, got := s.json("GET", "/v1/files/"+id+"/content", "a", ""); status != 200 || got["content"] != content {
		t.Errorf("%d %v", status, got)
	}
	for _, path := range []string{"/v1/files/" + id, "/v1/files/" + id + "/content"} {
		status, got := s.json("GET", path, "b", "")
		mustRefuse(t, status, got, 404, "id", "No such File object")
	}
	second := s.upload("a", "{}")
	if status, got := s.json("GET", "/v1/files?limit=1&purpose=batch", "a", ""); status != 200 || got["has_more"] != true || got["first_id"] != second || got["last_id"] != second || len(got["data"].([]any)) != 1 {
		t.Errorf("%d %v", status, got)
	}
	if status, got := s.json("GET", "/v1/files?after="+second, "a", ""); status != 200 || got["has_more"] != false || got["first_id"] != id {
		t.Errorf("%d %v", status, got)
	}
	if status, got := s.json("GET", "/v1/files?order=asc", "a", ""); status != 200 || got["first_id"] != id || got["last_id"] != second {
		t.Errorf("%d %v", status, got)
	}
	if status, got := s.json("GET", "/v1/files", "b", ""); status != 200 || len(got["data"].([]any)) != 0 || got["first_id"] != nil {
		t.Errorf("of another tenant: %d %v", status, got)
	}
	if status, got := s.json("DELETE", "/v1/files/"+id, "a", ""); status != 200 || got["deleted"] != true || got["id"] != id {
		t.Errorf("%d %v", status, got)
	}
	status, got := s.json("DELETE", "/v1/files/"+id, "a", "")
	mustRefuse(t, status, got, 404, "id", "No such File object")
	if kept := s.blobCount(); kept != 1 {
		t.Errorf("%d files are stored, want that of %s", kept, second)
	}
}

func (s *service) blobCount() (n int) {
	s.t.Helper()
	if err := s.blobs.Keys(func(string) error { n++; return nil }); err != nil {
		s.t.Fatal(err)
	}
	return n
}

func TestBadUploads(t *testing.T) {
	s := serve(t, api.Config{MaxFile: 10})
	file, purpose := field{"file", "{}", "in.jsonl"}, field{"purpose", "batch", ""}
	for _, c := range []struct {
		name        string
		fields      []field
		status      int
		param, text string
	}{
		{"no purpose", []field{file}, 400, "purpose", "no field purpose"},
		{"another purpose", []field{{"purpose", "fine-tune", ""}, file}, 400, "purpose", `"fine-tune"`},
		{"no file", []field{purpose}, 400, "file", "no field file"},
		{"two files", []field{purpose, file, file}, 400, "file", "more than one"},
		{"an empty file", []field{purpose, {"file", "", "in.jsonl"}}, 400, "file", "empty"},
		{"a file without a name", []field{purpose, {"file", "{}", ""}}, 400, "file", "name of 0 bytes"},
		{"too large", []field{purpose, {"file", "01234567890", "in.jsonl"}}, 413, "file", "more than 10 bytes"},
		{"the largest", []field{purpose, {"file", "0123456789", "in.jsonl"}}, 200, "", ""},
		{"a field that does not exist", []field{purpose, {"colour", "red", ""}, file}, 400, "colour", "unknown field"},
		{"a long field", []field{{"purpose", strings.Repeat("x", 2000), ""}, file}, 400, "", "more than 1024 bytes"},
		{"another anchor", []field{purpose, file, {"expires_after[anchor]", "now", ""}, {"expires_after[seconds]", "3600", ""}}, 400, "expires_after", `"now"`},
		{"too short a life", []field{purpose, file, {"expires_after[anchor]", "created_at", ""}, {"expires_after[seconds]", "1", ""}}, 400, "expires_after", "3600"},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, got := s.form("", c.fields...)
			if c.status == 200 {
				if status != 200 {
					t.Errorf("%d %v", status, got)
				}
				return
			}
			mustRefuse(t, status, got, c.status, c.param, c.text)
		})
	}
	status, got := s.json("POST", "/v1/files", "", "{}")
	mustRefuse(t, status, got, 400, "file", "multipart/form-data")
	status, got = s.call("POST", "/v1/files", "", "multipart/form-data; boundary=x", strings.NewReader("--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nabc"))
	mustRefuse(t, status, got, 400, "file", "breaks off after")
	if kept := s.blobCount(); kept != 1 {
		t.Errorf("%d files are stored, want one", kept)
	}
}

func TestBatches(t *testing.T) {
	s := serve(t, api.Config{})
	file := s.upload("a", "{}")
	status, b := s.json("POST", "/v1/batches", "a", `{"input_file_id":"`+file+`","endpoint":"/v1/chat/completions","completion_window":"24h","metadata":{"k":"v"},"output_expires_after":{"anchor":"created_at","seconds":3600}}`)
	if status != 200 || b["object"] != "batch" || b["status"] != "validating" || b["output_file_id"] != nil || b["errors"] != nil || b["metadata"].(map[string]any)["k"] != "v" {
		t.Fatal(status, b)
	}
	if b["expires_at"].(float64)-b["created_at"].(float64) != 24*3600 {
		t.Errorf("created at %v, expires at %v", b["created_at"], b["expires_at"])
	}
	if s.changed.Load() != 1 {
		t.Error("the worker was not told")
	}
	id := b["id"].(string)
	if status, got := s.json("GET", "/v1/batches/"+id, "a", ""); status != 200 || fmt.Sprint(got) != fmt.Sprint(b) {
		t.Errorf("%d %v, want %v", status, got, b)
	}
	if status, got := s.json("GET", "/v1/batches", "a", ""); status != 200 || got["first_id"] != id || got["has_more"] != false {
		t.Errorf("%d %v", status, got)
	}
	status, got := s.json("DELETE", "/v1/files/"+file, "a", "")
	mustRefuse(t, status, got, 409, "id", "has not ended")
	for _, call := range [][2]string{{"GET", ""}, {"POST", "/cancel"}} {
		status, got := s.json(call[0], "/v1/batches/"+id+call[1], "b", "")
		mustRefuse(t, status, got, 404, "id", "No batch found")
	}
	if status, got := s.json("POST", "/v1/batches/"+id+"/cancel", "a", ""); status != 200 || got["status"] != "cancelled" {
		t.Errorf("%d %v", status, got)
	}
	status, got = s.json("POST", "/v1/batches/"+id+"/cancel", "a", "")
	mustRefuse(t, status, got, 409, "id", "has the status cancelled")
}

func TestBadCalls(t *testing.T) {
	s := serve(t, api.Config{})
	file, other := s.upload("a", "{}"), s.upload("b", "{}")
	body := func(edit string, args ...any) string {
		fields := map[string]any{"input_file_id": file, "endpoint": "/v1/embeddings", "completion_window": "24h"}
		if err := json.Unmarshal(fmt.Appendf(nil, edit, args...), &fields); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	pairs := map[string]string{}
	for i := range 17 {
		pairs[fmt.Sprint(i)] = ""
	}
	many, err := json.Marshal(pairs)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, call, body string
		status           int
		param, text      string
	}{
		{"no JSON", "POST /v1/batches", `{`, 400, "", "is not the JSON object"},
		{"two values", "POST /v1/batches", body(`{}`) + "{}", 400, "", "more than one value"},
		{"a list", "POST /v1/batches", `[]`, 400, "", "JSON type array"},
		{"a number for the file", "POST /v1/batches", body(`{"input_file_id":1}`), 400, "input_file_id", "number"},
		{"an unknown parameter", "POST /v1/batches", body(`{"colour":1}`), 400, "", `"colour"`},
		{"a large body", "POST /v1/batches", body(`{"completion_window":"%s"}`, strings.Repeat("x", 1<<20)), 413, "", "more than"},
		{"no file", "POST /v1/batches", body(`{"input_file_id":""}`), 400, "input_file_id", "missing"},
		{"a file that does not exist", "POST /v1/batches", body(`{"input_file_id":"file-x"}`), 400, "input_file_id", "No such File"},
		{"a file of another tenant", "POST /v1/batches", body(`{"input_file_id":"%s"}`, other), 400, "input_file_id", "No such File"},
		{"another endpoint", "POST /v1/batches", body(`{"endpoint":"/v1/models"}`), 400, "endpoint", "/v1/chat/completions"},
		{"no window", "POST /v1/batches", body(`{"completion_window":""}`), 400, "completion_window", "24h"},
		{"a long window", "POST /v1/batches", body(`{"completion_window":"31d"}`), 400, "completion_window", "at most"},
		{"a window that has passed", "POST /v1/batches", body(`{"completion_window":"-1h"}`), 400, "completion_window", "at least"},
		{"much metadata", "POST /v1/batches", body(`{"metadata":%s}`, many), 400, "metadata", "17 pairs"},
		{"a long key", "POST /v1/batches", body(`{"metadata":{"%s":""}}`, strings.Repeat("k", 65)), 400, "metadata", "too long"},
		{"a number in metadata", "POST /v1/batches", body(`{"metadata":{"k":1}}`), 400, "metadata", "number"},
		{"a short life of the output", "POST /v1/batches", body(`{"output_expires_after":{"anchor":"created_at","seconds":1}}`), 400, "output_expires_after", "3600"},
		{"a limit of 0", "GET /v1/batches?limit=0", "", 400, "limit", "1 to 100"},
		{"a large limit", "GET /v1/batches?limit=101", "", 400, "limit", "1 to 100"},
		{"a limit for files", "GET /v1/files?limit=x", "", 400, "limit", "1 to 10000"},
		{"another order", "GET /v1/files?order=up", "", 400, "order", `"up"`},
		{"after nothing", "GET /v1/files?after=file-x", "", 400, "after", "does not exist"},
		{"after no batch", "GET /v1/batches?after=" + file, "", 400, "after", "does not exist"},
		{"no file of this name", "GET /v1/files/file-x", "", 404, "id", "No such File"},
		{"no batch of this name", "GET /v1/batches/batch_x", "", 404, "id", "No batch found"},
		{"another path", "GET /v1/models", "", 404, "", "is not served here"},
		{"another method", "PUT /v1/files", "", 405, "", "is not served here"},
		{"a path above", "GET /v1/files/../batches", "", 404, "", "is not served here"},
		{"a path in an id", "GET /v1/files/..%2fbatch.db/content", "", 404, "id", "No such File"},
	} {
		t.Run(c.name, func(t *testing.T) {
			method, path, _ := strings.Cut(c.call, " ")
			status, got := s.json(method, path, "a", c.body)
			mustRefuse(t, status, got, c.status, c.param, c.text)
		})
	}
	if s.changed.Load() != 0 {
		t.Error("a batch was made")
	}
}

// With a gateway's header, the key says nothing, and a client cannot add a header of its own.
func TestTenantHeader(t *testing.T) {
	s := serve(t, api.Config{TenantHeader: "X-Tenant"})
	ask := func(key string, tenants ...string) (int, map[string]any) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "POST", s.url+"/v1/batches", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+key)
		r.Header["X-Tenant"] = tenants
		return s.do(r)
	}
	status, got := ask("a")
	mustRefuse(t, status, got, 401, "", "X-Tenant")
	status, got = ask("a", "")
	mustRefuse(t, status, got, 401, "", "X-Tenant")
	status, got = ask("a", "mine", "theirs")
	mustRefuse(t, status, got, 400, "", "2 headers X-Tenant")
	status, got = ask("a", "mine")
	mustRefuse(t, status, got, 400, "input_file_id", "missing")
}

// The scheme is not part of the key, and another key is another tenant.
func TestTenants(t *testing.T) {
	s := serve(t, api.Config{})
	file := s.upload("a", "{}")
	for _, c := range []struct {
		authorization string
		want          int
	}{
		{"Bearer a", 200}, {"bearer a", 200}, {"BEARER  a", 200}, {"Bearer A", 404}, {"Bearer aa", 404}, {"Bearer b", 404}, {"", 404},
	} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", s.url+"/v1/files/"+file, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.authorization != "" {
			r.Header.Set("Authorization", c.authorization)
		}
		if status, _ := s.do(r); status != c.want {
			t.Errorf("Authorization %q: status %d, want %d", c.authorization, status, c.want)
		}
	}
}

// A tenant that would exceed its quota is told not to try again. Others are not affected.
func TestQuotas(t *testing.T) {
	s := serve(t, api.Config{Quota: batch.Amounts{Bytes: 10, Batches: 1, Lines: 3}})
	file := s.upload("a", "{}\n{}")
	status, got := s.form("a", field{"purpose", "batch", ""}, field{"file", "{}\n{}\n", "in.jsonl"})
	mustExceed(t, status, got, "10 bytes of files, of which 5 are used")
	if kept := s.blobCount(); kept != 1 {
		t.Errorf("%d files are stored, want one", kept)
	}
	body := `{"input_file_id":"` + file + `","endpoint":"/v1/embeddings","completion_window":"24h"}`
	if status, got := s.json("POST", "/v1/batches", "a", body); status != 200 {
		t.Fatal(status, got)
	}
	status, got = s.json("POST", "/v1/batches", "a", body)
	mustExceed(t, status, got, "1 unfinished batches, of which 1 are used")

	many := s.upload("b", "1\n2\n3\n4")
	status, got = s.json("POST", "/v1/batches", "b", strings.Replace(body, file, many, 1))
	mustExceed(t, status, got, "3 unfinished lines, of which 0 are used")

	response, err := http.DefaultClient.Post(s.url+"/v1/batches", "application/json", strings.NewReader(`{"input_file_id":"`+s.upload("", "\n\n\n\n")+`","endpoint":"/v1/embeddings","completion_window":"24h"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != 429 || response.Header.Get("X-Should-Retry") != "false" {
		t.Errorf("%d, X-Should-Retry: %q", response.StatusCode, response.Header.Get("X-Should-Retry"))
	}
}

func mustExceed(t *testing.T, status int, object map[string]any, text string) {
	t.Helper()
	e, _ := object["error"].(map[string]any)
	if message, _ := e["message"].(string); status != 429 || e["type"] != "insufficient_quota" || e["code"] != "insufficient_quota" || !strings.Contains(message, text) {
		t.Errorf("%d %v, want a refusal with %q", status, object, text)
	}
}

// Files of which the client has not said when they expire do so after the retention time.
func TestRetention(t *testing.T) {
	s := serve(t, api.Config{Retention: 48 * time.Hour})
	for _, c := range []struct {
		name   string
		fields []field
		want   float64
	}{
		{"by default", nil, 48 * 3600},
		{"as the client says", []field{{"expires_after[anchor]", "created_at", ""}, {"expires_after[seconds]", "7200", ""}}, 7200},
	} {
		status, f := s.form("a", append(c.fields, field{"purpose", "batch", ""}, field{"file", "{}", "in.jsonl"})...)
		if status != 200 {
			t.Fatal(status, f)
		}
		if got := f["expires_at"].(float64) - f["created_at"].(float64); got != c.want {
			t.Errorf("%s: it expires after %v s, want %v", c.name, got, c.want)
		}
	}
	body := `{"input_file_id":"` + s.upload("a", "{}") + `","endpoint":"/v1/embeddings","completion_window":"24h"}`
	status, made := s.json("POST", "/v1/batches", "a", body)
	if status != 200 {
		t.Fatal(status, made)
	}
	open, err := s.store.OpenBatches(t.Context())
	if err != nil || len(open) != 1 || open[0].OutputExpires != 48*3600 {
		t.Errorf("%+v, %v: its output must expire after the retention time", open, err)
	}
}
