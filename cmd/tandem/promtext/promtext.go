package promtext

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// Limit is the largest page that is read, in bytes. A busy vLLM writes 70 KB, one with 16 ranks about a megabyte.
const Limit = 8 << 20

// maxLine is the longest line that is read, in bytes: a vLLM's cache_config_info has 1.2 KB.
const maxLine = 1 << 20

// Series is one line of a page.
type Series struct {
	Name   string
	Labels map[string]string // nil: no labels
	Value  float64
}

// Page holds all series of a page, in its order.
type Page []Series

// Get reads the page at a URL. The error describes the answer; a refused connection can be detected with errors.Is.
func Get(ctx context.Context, client *http.Client, url string) (Page, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("reading a metrics page: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err // the error has the URL
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("reading %s: it answers %s", url, resp.Status)
	}
	page, err := Read(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", url, err)
	}
	return page, nil
}

// Read reads a page. Its error is that of r, or means that the page is too large.
func Read(r io.Reader) (Page, error) {
	limited := &io.LimitedReader{R: r, N: Limit + 1}
	lines := bufio.NewScanner(limited)
	lines.Buffer(nil, maxLine)
	var page Page
	for lines.Scan() {
		if s, ok := parse(lines.Text()); ok {
			page = append(page, s)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if limited.N == 0 {
		return nil, errors.New("the page is larger than 8 MiB")
	}
	return page, nil
}

// parse parses one line: name{label="value",…} value, and an optional rest.
func parse(line string) (s Series, ok bool) {
	line = strings.TrimSpace(line)
	if line == "" || line[0] == '#' {
		return s, false
	}
	end := strings.IndexAny(line, "{ \t")
	if end <= 0 {
		return s, false
	}
	s.Name, line = line[:end], line[end:]
	if line[0] == '{' {
		if s.Labels, line, ok = labels(line[1:]); !ok {
			return s, false
		}
	}
	fields := strings.Fields(line)
	if len(fields) == 0 {
		return s, false
	}
	value, err := strconv.ParseFloat(fields[0], 64)
	s.Value = value
	return s, err == nil
}

// labels parses up to the closing brace and returns the text after it.
func labels(text string) (found map[string]string, rest string, ok bool) {
	found = map[string]string{}
	for {
		text = strings.TrimLeft(text, " \t,")
		if after, closed := strings.CutPrefix(text, "}"); closed {
			return found, after, true
		}
		name, after, is := strings.Cut(text, "=")
		if !is {
			return nil, "", false
		}
		var value string
		if value, text, ok = quoted(strings.TrimLeft(after, " \t")); !ok {
			return nil, "", false
		}
		found[strings.TrimSpace(name)] = value
	}
}

// unescape undoes the escapes that the format has in label values.
var unescape = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n")

func quoted(text string) (value, rest string, ok bool) {
	if !strings.HasPrefix(text, `"`) {
		return "", "", false
	}
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return unescape.Replace(text[1:i]), text[i+1:], true
		}
	}
	return "", "", false
}

// Sum adds up all series of a name: an engine with several ranks has one for each. ok is false if there is none.
func (p Page) Sum(name string) (sum float64, ok bool) {
	for _, s := range p {
		if s.Name == name {
			sum, ok = sum+s.Value, true
		}
	}
	return sum, ok
}

// Labels returns the labels of all series of a name.
func (p Page) Labels(name string) (all []map[string]string) {
	for _, s := range p {
		if s.Name == name {
			all = append(all, s.Labels)
		}
	}
	return all
}

// Has reports whether a series begins with a prefix.
func (p Page) Has(prefix string) bool {
	for _, s := range p {
		if strings.HasPrefix(s.Name, prefix) {
			return true
		}
	}
	return false
}
