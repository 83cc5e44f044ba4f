package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gorilla/mux"

	"github.com/tandem-serving/tandem/batch"
	"github.com/tandem-serving/tandem/batch/store"
)

// Config is what a Server needs to know.
type Config struct {
	MaxFile      int64         // bytes of an uploaded file
	TenantHeader string        // names the tenant; "": the API key does
	Quota        batch.Amounts // of each tenant
	Retention    time.Duration // after which files expire of which the client has not said when; 0: never
	Changed      func()        // is called when there is work
}

// Server serves the API. It is safe for concurrent use.
type Server struct {
	cfg   Config
	store *store.Store
	blobs batch.Blobs
	log   *slog.Logger
}

// New makes a Server.
func New(cfg Config, s *store.Store, blobs batch.Blobs, log *slog.Logger) *Server {
	return &Server{cfg, s, blobs, log}
}

// Handler returns the handler of all paths.
func (s *Server) Handler() http.Handler {
	r := mux.NewRouter().SkipClean(true).UseEncodedPath()
	route := func(method, path string, serve func(http.ResponseWriter, *http.Request, string) error) {
		r.Path(path).Methods(method).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			tenant, err := s.tenant(r)
			if err == nil {
				err = serve(w, r, tenant)
			}
			if err != nil {
				s.refuse(w, r, err)
			}
		})
	}
	route(http.MethodPost, "/v1/files", s.upload)
	route(http.MethodGet, "/v1/files", s.listFiles)
	route(http.MethodGet, "/v1/files/{id}", s.getFile)
	route(http.MethodGet, "/v1/files/{id}/content", s.getContent)
	route(http.MethodDelete, "/v1/files/{id}", s.deleteFile)
	route(http.MethodPost, "/v1/batches", s.createBatch)
	route(http.MethodGet, "/v1/batches", s.listBatches)
	route(http.MethodGet, "/v1/batches/{id}", s.getBatch)
	route(http.MethodPost, "/v1/batches/{id}/cancel", s.cancelBatch)
	r.NotFoundHandler = s.unknown(http.StatusNotFound)
	r.MethodNotAllowedHandler = s.unknown(http.StatusMethodNotAllowed)
	return r
}

// unknown returns a handler that refuses calls that are not part of the API.
func (s *Server) unknown(status int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.refuse(w, r, &refusal{status: status, message: fmt.Sprintf("%s %s is not served here: this is the Batch API, with /v1/files and /v1/batches.", r.Method, strconv.QuoteToASCII(clip(r.URL.Path)))})
	})
}

// id returns the id in the path of a call.
func id(r *http.Request) string { return mux.Vars(r)["id"] }

// tenant returns who asks: a hash of the API key, or of the gateway's header. A gateway that adds its header to one of the client's, instead of
// replacing it, would let clients choose their tenant: such requests are refused.
func (s *Server) tenant(r *http.Request) (string, error) {
	name := r.Header.Get("Authorization")
	if scheme, key, found := strings.Cut(name, " "); found && strings.EqualFold(scheme, "Bearer") {
		name = strings.TrimSpace(key)
	}
	if header := s.cfg.TenantHeader; header != "" {
		switch values := r.Header.Values(header); {
		case len(values) > 1:
			return "", &refusal{status: http.StatusBadRequest, code: "ambiguous_tenant", message: fmt.Sprintf("There are %d headers %s; the gateway must replace the client's.", len(values), header)}
		case len(values) == 0 || values[0] == "":
			return "", &refusal{status: http.StatusUnauthorized, code: "missing_tenant", message: fmt.Sprintf("The gateway sent no header %s, which names the tenant.", header)}
		default:
			name = values[0]
		}
	}
	if name == "" {
		return "", nil
	}
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:16]), nil
}

// refusal is an error for the client.
type refusal struct {
	status               int
	message, param, code string
	kind                 string // "": by the status
}

func (r *refusal) Error() string { return r.message }

func invalid(param, format string, args ...any) error {
	return &refusal{status: http.StatusBadRequest, message: fmt.Sprintf(format, args...), param: param}
}

// refuse answers with an error. What is not the client's fault is logged.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	var known *refusal
	var over *batch.QuotaError
	switch {
	case errors.As(err, &known):
	case errors.As(err, &over):
		// OpenAI's clients try a 429 again unless told that this does not help.
		w.Header().Set("X-Should-Retry", "false")
		known = &refusal{status: http.StatusTooManyRequests, kind: "insufficient_quota", code: "insufficient_quota",
			message: fmt.Sprintf("This would exceed your quota of %d %s, of which %d are used. Delete files, or wait until batches have ended.", over.Quota, over.What, over.Used)}
	case r.Context().Err() != nil:
		return // the client has gone
	case errors.Is(err, syscall.ENOSPC), store.IsFull(err):
		s.log.Error("the disk is full", "method", r.Method, "error", err)
		known = &refusal{status: http.StatusInsufficientStorage, code: "storage_full", message: "The server has no space left for files. Try again later, or delete files."}
	default:
		s.log.Error("serving the API", "method", r.Method, "error", err)
		known = &refusal{status: http.StatusInternalServerError, message: "The server could not do this. Try again later."}
	}
	kind := known.kind
	switch {
	case kind != "":
	case known.status >= 500:
		kind = "server_error"
	default:
		kind = "invalid_request_error"
	}
	body := struct {
		Error struct {
			Message string  `json:"message"`
			Type    string  `json:"type"`
			Param   *string `json:"param"`
			Code    *string `json:"code"`
		} `json:"error"`
	}{}
	body.Error.Message, body.Error.Type, body.Error.Param, body.Error.Code = known.message, kind, orNull(known.param), orNull(known.code)
	answer(w, known.status, body)
}

// answer writes JSON.
func answer(w http.ResponseWriter, status int, value any) {
	text, err := json.Marshal(value)
	if err != nil { // the values are of this package, and have no such parts
		status, text = http.StatusInternalServerError, []byte(`{"error":{"message":"encoding the answer","type":"server_error","param":null,"code":null}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // the client may have gone
}

func orNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// seconds returns Unix seconds, nil for never.
func seconds(ms int64) *int64 {
	if ms == 0 {
		return nil
	}
	s := ms / 1000
	return &s
}

func now() int64 { return time.Now().UnixMilli() }

func clip(text string) string {
	const most = 200
	return text[:min(len(text), most)]
}

// page reads the parameters of a list. find looks for the object that after names.
func page(ctx context.Context, r *http.Request, usual, most int, find func(ctx context.Context, id string) error) (store.Page, error) {
	query := r.URL.Query()
	p := store.Page{After: query.Get("after"), Limit: usual}
	if text := query.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > most {
			return p, invalid("limit", "limit is %s; it must be a number from 1 to %d.", strconv.QuoteToASCII(clip(text)), most)
		}
		p.Limit = n
	}
	switch order := query.Get("order"); order {
	case "", "desc":
	case "asc":
		p.Old = true
	default:
		return p, invalid("order", "order is %s; it must be asc or desc.", strconv.QuoteToASCII(clip(order)))
	}
	if p.After != "" {
		if err := find(ctx, p.After); errors.Is(err, batch.ErrNotFound) {
			return p, invalid("after", "after is %s, which does not exist.", strconv.QuoteToASCII(clip(p.After)))
		} else if err != nil {
			return p, err
		}
	}
	p.Limit++ // one more than wanted says whether there are more
	return p, nil
}

// list is a page of objects.
type list[T any] struct {
	Object  string  `json:"object"`
	Data    []T     `json:"data"`
	FirstID *string `json:"first_id"`
	LastID  *string `json:"last_id"`
	HasMore bool    `json:"has_more"`
}

func listOf[T, From any](found []From, p store.Page, object func(From) T, id func(From) string) list[T] {
	l := list[T]{Object: "list", Data: []T{}, HasMore: len(found) == p.Limit}
	if l.HasMore {
		found = slices.Delete(found, p.Limit-1, p.Limit)
	}
	for _, f := range found {
		l.Data = append(l.Data, object(f))
	}
	if len(found) > 0 {
		l.FirstID, l.LastID = orNull(id(found[0])), orNull(id(found[len(found)-1]))
	}
	return l
}
