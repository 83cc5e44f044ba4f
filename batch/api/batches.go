package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/batch"
)

const (
	// maxBody is the largest body of a call that is not an upload.
	maxBody = 1 << 20
	// OpenAI's limits of metadata, in characters.
	maxPairs, maxKey, maxValue = 16, 64, 512
	// leastWindow and mostWindow bound completion windows, and are in the message about others; OpenAI has 24 hours only.
	leastWindow, mostWindow = time.Second, 30 * 24 * time.Hour
)

// batchObject is a batch as clients see it.
type batchObject struct {
	ID               string            `json:"id"`
	Object           string            `json:"object"`
	Endpoint         string            `json:"endpoint"`
	Model            *string           `json:"model"`
	Errors           *problemList      `json:"errors"`
	InputFileID      string            `json:"input_file_id"`
	CompletionWindow string            `json:"completion_window"`
	Status           batch.Status      `json:"status"`
	OutputFileID     *string           `json:"output_file_id"`
	ErrorFileID      *string           `json:"error_file_id"`
	CreatedAt        int64             `json:"created_at"`
	InProgressAt     *int64            `json:"in_progress_at"`
	ExpiresAt        *int64            `json:"expires_at"`
	FinalizingAt     *int64            `json:"finalizing_at"`
	CompletedAt      *int64            `json:"completed_at"`
	FailedAt         *int64            `json:"failed_at"`
	ExpiredAt        *int64            `json:"expired_at"`
	CancellingAt     *int64            `json:"cancelling_at"`
	CancelledAt      *int64            `json:"cancelled_at"`
	RequestCounts    counts            `json:"request_counts"`
	Metadata         map[string]string `json:"metadata"`
}

type problemList struct {
	Object string    `json:"object"`
	Data   []problem `json:"data"`
}

type problem struct {
	Code    string  `json:"code"`
	Message string  `json:"message"`
	Param   *string `json:"param"`
	Line    *int64  `json:"line"`
}

type counts struct {
	Total     int64 `json:"total"`
	Completed int64 `json:"completed"`
	Failed    int64 `json:"failed"`
}

func toBatch(b batch.Batch) batchObject {
	t := b.Times
	o := batchObject{ID: b.ID, Object: "batch", Endpoint: b.Endpoint, Model: orNull(b.Model), InputFileID: b.InputFile, CompletionWindow: b.Window, Status: b.Status,
		OutputFileID: orNull(b.OutputFile), ErrorFileID: orNull(b.ErrorFile), CreatedAt: t.Created / 1000, InProgressAt: seconds(t.InProgress), ExpiresAt: seconds(t.Expires),
		FinalizingAt: seconds(t.Finalizing), CompletedAt: seconds(t.Completed), FailedAt: seconds(t.Failed), ExpiredAt: seconds(t.Expired),
		CancellingAt: seconds(t.Cancelling), CancelledAt: seconds(t.Cancelled), RequestCounts: counts(b.Counts), Metadata: b.Metadata}
	if len(b.Problems) > 0 {
		o.Errors = &problemList{Object: "list"}
		for _, p := range b.Problems {
			shown := problem{Code: p.Code, Message: p.Message, Param: orNull(p.Param)}
			if p.Line > 0 {
				shown.Line = &p.Line
			}
			o.Errors.Data = append(o.Errors.Data, shown)
		}
	}
	return o
}

// createRequest is the body of POST /v1/batches.
type createRequest struct {
	InputFileID      string            `json:"input_file_id"`
	Endpoint         string            `json:"endpoint"`
	CompletionWindow string            `json:"completion_window"`
	Metadata         map[string]string `json:"metadata"`
	OutputExpires    *struct {
		Anchor  string `json:"anchor"`
		Seconds int64  `json:"seconds"`
	} `json:"output_expires_after"`
}

func (s *Server) createBatch(w http.ResponseWriter, r *http.Request, tenant string) error {
	var c createRequest
	if err := readJSON(w, r, &c); err != nil {
		return err
	}
	window, err := c.check()
	if err != nil {
		return err
	}
	b := batch.Batch{ID: batch.NewID("batch_"), Tenant: tenant, Endpoint: c.Endpoint, InputFile: c.InputFileID, Window: c.CompletionWindow, Status: batch.Validating, Metadata: c.Metadata}
	b.Times.Created = now()
	b.Times.Expires = b.Times.Created + window.Milliseconds()
	b.OutputExpires = int64(s.cfg.Retention.Seconds())
	if c.OutputExpires != nil {
		b.OutputExpires = c.OutputExpires.Seconds
	}
	file, err := s.store.File(r.Context(), tenant, c.InputFileID)
	if err == nil && file.Purpose != batch.PurposeInput {
		return invalid("input_file_id", "The file has the purpose %s; the input of a batch must have the purpose %s.", file.Purpose, batch.PurposeInput)
	}
	if err == nil {
		err = s.store.AddBatch(r.Context(), b, s.cfg.Quota)
	}
	if errors.Is(err, batch.ErrNotFound) {
		return invalid("input_file_id", "No such File object: %s", strconv.QuoteToASCII(clip(c.InputFileID)))
	}
	if err != nil {
		return err
	}
	s.cfg.Changed()
	answer(w, http.StatusOK, toBatch(b))
	return nil
}

// check reports what is wrong with a request, and returns the completion window.
func (c *createRequest) check() (window time.Duration, err error) {
	if c.InputFileID == "" {
		return 0, invalid("input_file_id", "input_file_id is missing: upload the requests with POST /v1/files, purpose batch.")
	}
	if !slices.Contains(batch.Endpoints(), c.Endpoint) {
		return 0, invalid("endpoint", "endpoint is %s; it must be one of %s.", strconv.QuoteToASCII(clip(c.Endpoint)), strings.Join(batch.Endpoints(), ", "))
	}
	window, err = readWindow(c.CompletionWindow)
	if err != nil || window < leastWindow || window > mostWindow {
		return 0, invalid("completion_window", "completion_window is %s; it must be a time such as 24h, 90m or 7d, at least 1s and at most 30d.",
			strconv.QuoteToASCII(clip(c.CompletionWindow)))
	}
	if len(c.Metadata) > maxPairs {
		return 0, invalid("metadata", "metadata has %d pairs; it may have %d.", len(c.Metadata), maxPairs)
	}
	for key, value := range c.Metadata {
		if key == "" || utf8.RuneCountInString(key) > maxKey || utf8.RuneCountInString(value) > maxValue {
			return 0, invalid("metadata", "The pair %s of metadata is too long: keys have 1 to %d characters, values at most %d.", strconv.QuoteToASCII(clip(key)), maxKey, maxValue)
		}
	}
	if e := c.OutputExpires; e != nil && (e.Anchor != "created_at" || e.Seconds < leastExpiry || e.Seconds > mostExpiry) {
		return 0, invalid("output_expires_after", "output_expires_after needs the anchor created_at, and %d to %d seconds.", leastExpiry, mostExpiry)
	}
	return window, nil
}

// readWindow reads a duration of Go's, or a number of days.
func readWindow(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * 24 * time.Hour, err
	}
	return time.ParseDuration(text)
}

// readJSON reads a body of one JSON object.
func readJSON(w http.ResponseWriter, r *http.Request, into any) error {
	r.Body = patient(w, r)
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	if err == nil {
		if _, more := decoder.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("there is more than one value")
		}
	}
	var large *http.MaxBytesError
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &large):
		return &refusal{status: http.StatusRequestEntityTooLarge, message: fmt.Sprintf("The body has more than %d bytes.", maxBody)}
	case errors.As(err, &wrong) && wrong.Field == "":
		return invalid("", "The body is not the JSON object of this call, but has the JSON type %s.", wrong.Value)
	case errors.As(err, &wrong):
		return invalid(wrong.Field, "%s has the JSON type %s, which is the wrong one.", wrong.Field, wrong.Value)
	case err != nil:
		return invalid("", "The body is not the JSON object of this call: %s.", strings.TrimPrefix(err.Error(), "json: "))
	}
	return nil
}

// noBatch turns batch.ErrNotFound into what a client sees.
func noBatch(err error, id string) error {
	if errors.Is(err, batch.ErrNotFound) {
		return &refusal{status: http.StatusNotFound, param: "id", message: fmt.Sprintf("No batch found with id %s", strconv.QuoteToASCII(clip(id)))}
	}
	return err
}

func (s *Server) getBatch(w http.ResponseWriter, r *http.Request, tenant string) error {
	b, err := s.store.Batch(r.Context(), tenant, id(r))
	if err != nil {
		return noBatch(err, id(r))
	}
	answer(w, http.StatusOK, toBatch(b))
	return nil
}

func (s *Server) listBatches(w http.ResponseWriter, r *http.Request, tenant string) error {
	p, err := page(r.Context(), r, 20, 100, func(ctx context.Context, id string) error {
		_, err := s.store.Batch(ctx, tenant, id)
		return err
	})
	if err != nil {
		return err
	}
	batches, err := s.store.Batches(r.Context(), tenant, p)
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, listOf(batches, p, toBatch, func(b batch.Batch) string { return b.ID }))
	return nil
}

func (s *Server) cancelBatch(w http.ResponseWriter, r *http.Request, tenant string) error {
	b, err := s.store.Cancel(r.Context(), tenant, id(r), now())
	if errors.Is(err, batch.ErrEnded) {
		return &refusal{status: http.StatusConflict, param: "id", code: "batch_ended", message: fmt.Sprintf("The batch has the status %s: it can no longer be cancelled.", b.Status)}
	}
	if err != nil {
		return noBatch(err, id(r))
	}
	s.cfg.Changed()
	answer(w, http.StatusOK, toBatch(b))
	return nil
}
