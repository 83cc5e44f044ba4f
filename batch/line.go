package batch

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/pd/body"
)

// MaxCustomID is the longest custom_id in bytes. It is ours: OpenAI documents no limit.
const MaxCustomID = 512

// Line is the request in one line of an input file. Body and Prompt are parts of the line.
type Line struct {
	CustomID string
	Endpoint string
	Model    string
	Body     []byte // sent as it is
	Prompt   []byte // raw JSON of the member that the prompt begins with; nil if there is none
}

// The wants of lines.
const (
	wantID = iota
	wantMethod
	wantURL
	wantBody
	wantModel
	wantStream
	wantMessages
	wantPrompt
	wantInput
)

var lineTable = body.NewTable(
	body.Want{Path: "custom_id"}, body.Want{Path: "method"}, body.Want{Path: "url"}, body.Want{Path: "body"},
	body.Want{Path: "body.model"}, body.Want{Path: "body.stream"}, body.Want{Path: "body.messages"}, body.Want{Path: "body.prompt"}, body.Want{Path: "body.input"})

// MaxLine is the longest line of an input file in bytes.
const MaxLine = 16 << 20

// Parser reads lines. It is not safe for concurrent use. The zero value is ready.
type Parser struct{ scanner body.Scanner }

// Parse reads one line, without its line feed. The Problem, if any, has no Line.
func (p *Parser) Parse(line []byte) (Line, *Problem) {
	if !utf8.Valid(line) {
		return Line{}, &Problem{Code: "invalid_json_line", Message: "The line is not UTF-8 text."}
	}
	if err := p.scanner.Scan(lineTable, body.Limits{}, line); err != nil {
		return Line{}, &Problem{Code: "invalid_json_line", Message: fmt.Sprintf("The line is not a JSON object: %v.", err)}
	}
	if p.scanner.Root().Kind != body.Object {
		return Line{}, &Problem{Code: "invalid_json_line", Message: "The line is not a JSON object."}
	}
	var parsed Line
	var problem *Problem
	text := func(want int, name string) string {
		m, found := p.scanner.Find(want)
		if problem != nil {
			return ""
		}
		if !found || m.Kind != body.String {
			problem = &Problem{Code: "missing_required_parameter", Param: name, Message: fmt.Sprintf("The line needs %s, a string.", name)}
			return ""
		}
		value, err := body.Text(line[m.Value.Start:m.Value.End])
		if err != nil {
			problem = &Problem{Code: "invalid_json_line", Param: name, Message: fmt.Sprintf("%s is not a JSON string: %v.", name, err)}
		}
		return value
	}
	parsed.CustomID = text(wantID, "custom_id")
	method := text(wantMethod, "method")
	parsed.Endpoint = text(wantURL, "url")
	if problem != nil {
		return Line{}, problem
	}
	if n := len(parsed.CustomID); n == 0 || n > MaxCustomID {
		return Line{}, &Problem{Code: "invalid_custom_id", Param: "custom_id", Message: fmt.Sprintf("custom_id has %d bytes; it must have 1 to %d.", n, MaxCustomID)}
	}
	if method != http.MethodPost {
		return Line{}, &Problem{Code: "invalid_method", Param: "method", Message: fmt.Sprintf("method is %s; only POST can be batched.", strconv.QuoteToASCII(clip(method)))}
	}
	content, found := p.scanner.Find(wantBody)
	if !found || content.Kind != body.Object {
		return Line{}, &Problem{Code: "missing_required_parameter", Param: "body", Message: "The line needs body, an object: the request."}
	}
	parsed.Body = line[content.Value.Start:content.Value.End]
	if parsed.Model = text(wantModel, "body.model"); problem != nil {
		return Line{}, problem
	}
	if strings.ContainsRune(parsed.Model, 0) { // no database has it in a text
		return Line{}, &Problem{Code: "invalid_request", Param: "body.model", Message: "body.model has a NUL character."}
	}
	if m, found := p.scanner.Find(wantStream); found && m.Kind != body.False && m.Kind != body.Null {
		return Line{}, &Problem{Code: "invalid_request", Param: "body.stream", Message: "Answers of batches cannot be streamed: leave body.stream out."}
	}
	for _, want := range []int{wantMessages, wantPrompt, wantInput} {
		if m, found := p.scanner.Find(want); found {
			parsed.Prompt = line[m.Value.Start:m.Value.End]
			break
		}
	}
	return parsed, nil
}

// clip shortens a text of the user's for messages.
func clip(text string) string {
	const most = 100
	if len(text) > most {
		return text[:most]
	}
	return text
}

// The error codes of lines without an answer. The first three are OpenAI's.
const (
	CodeExpired     = "batch_expired"
	CodeCancelled   = "batch_cancelled"
	CodeTimeout     = "request_timeout"
	CodeUnreachable = "upstream_unreachable"
	CodeBadAnswer   = "invalid_answer"
)

var codeTexts = map[string]string{
	CodeExpired:     "The completion window ended before this request could run.",
	CodeCancelled:   "The batch was cancelled before this request could run.",
	CodeTimeout:     "The request did not end in time.",
	CodeUnreachable: "The connection to the server of the model failed.",
	CodeBadAnswer:   "The server of the model gave an answer that is not JSON, or that is too large.",
}

// Result is what happened to one line.
type Result struct {
	CustomID  string
	RequestID string
	Status    int    // of the answer; 0: there is none
	Body      []byte // of the answer, JSON
	Code      string // why there is no answer
}

// OK reports whether the line belongs into the output file rather than the error file.
func (r *Result) OK() bool { return r.Status >= 200 && r.Status < 300 }

// Append appends the line of the output or error file, with its line feed.
func (r *Result) Append(dst []byte) []byte {
	dst = append(dst, `{"id":`...)
	dst = body.AppendQuoted(dst, r.RequestID)
	dst = append(dst, `,"custom_id":`...)
	dst = body.AppendQuoted(dst, r.CustomID)
	if r.Status == 0 {
		dst = append(dst, `,"response":null,"error":{"code":`...)
		dst = body.AppendQuoted(dst, r.Code)
		dst = append(dst, `,"message":`...)
		dst = body.AppendQuoted(dst, codeTexts[r.Code])
		return append(dst, "}}\n"...)
	}
	dst = append(dst, `,"response":{"status_code":`...)
	dst = strconv.AppendInt(dst, int64(r.Status), 10)
	dst = append(dst, `,"request_id":`...)
	dst = body.AppendQuoted(dst, r.RequestID)
	dst = append(dst, `,"body":`...)
	dst = appendOneLine(dst, r.Body)
	return append(dst, "},\"error\":null}\n"...)
}

// appendOneLine appends JSON without line feeds. JSON strings cannot contain them, so those that there are separate tokens.
func appendOneLine(dst, value []byte) []byte {
	for {
		i := bytes.IndexAny(value, "\r\n")
		if i < 0 {
			return append(dst, value...)
		}
		dst = append(append(dst, value[:i]...), ' ')
		value = value[i+1:]
	}
}
