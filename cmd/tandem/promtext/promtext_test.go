package promtext

import (
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

func TestRead(t *testing.T) {
	tests := []struct {
		name, text string
		want       Page
	}{
		{"nothing", "", nil},
		{"comments and blanks", "# HELP a b\n# TYPE a gauge\n\n   \n", nil},
		{"bare", "up 1\n", Page{{"up", nil, 1}}},
		{"no line feed at the end", "up 1", Page{{"up", nil, 1}}},
		{"timestamp", "up 1.5 1700000000000\n", Page{{"up", nil, 1.5}}},
		{"exemplar", `a_bucket{le="1"} 2 # {trace_id="x"} 0.5`, Page{{"a_bucket", map[string]string{"le": "1"}, 2}}},
		{"labels", `vllm:x{engine="0",model_name="m"} 2e3`, Page{{"vllm:x", map[string]string{"engine": "0", "model_name": "m"}, 2000}}},
		{"blanks in labels", `a{ b = "c" , d="e", } 1`, Page{{"a", map[string]string{"b": "c", "d": "e"}, 1}}},
		{"escapes", `a{b="\"}\\ \n="} 1`, Page{{"a", map[string]string{"b": "\"}\\ \n="}, 1}}},
		{"no labels in braces", `a{} 1`, Page{{"a", map[string]string{}, 1}}},
		{"infinity", "a +Inf", Page{{"a", nil, math.Inf(1)}}},
		{"odd lines are left out", "a\na{\na{b} 1\na{b=} 1\na{b=\"c} 1\na x\n{a=\"b\"} 1\nb 2\na{b=\"c\"}\n", Page{{"b", nil, 2}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got, err := Read(strings.NewReader(test.text)); err != nil || !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %v, %v; want %v", got, err, test.want)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	for name, text := range map[string]string{
		"a line":     strings.Repeat("x", maxLine+1),
		"the page":   strings.Repeat("some_series 1\n", Limit/10),
		"many feeds": strings.Repeat("\n", Limit+2),
	} {
		if _, err := Read(strings.NewReader(text)); err == nil {
			t.Errorf("%s is too long, but was read", name)
		}
	}
}

func TestPage(t *testing.T) {
	page := Page{{"a", map[string]string{"engine": "0"}, 1}, {"b", nil, 5}, {"a", map[string]string{"engine": "1"}, 2}}
	if sum, ok := page.Sum("a"); sum != 3 || !ok {
		t.Errorf("sum %v, %v", sum, ok)
	}
	if _, ok := page.Sum("c"); ok {
		t.Error("a sum of nothing")
	}
	if all := page.Labels("a"); len(all) != 2 || all[1]["engine"] != "1" {
		t.Errorf("labels %v", all)
	}
	if !page.Has("b") || page.Has("z") {
		t.Error("prefixes are not told apart")
	}
}

func TestGet(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte("up 1\n"))
	}))
	client := server.Client()
	page, err := Get(t.Context(), client, server.URL+"/metrics")
	if sum, ok := page.Sum("up"); err != nil || sum != 1 || !ok {
		t.Errorf("page %v, %v", page, err)
	}
	if _, err := Get(t.Context(), client, server.URL+"/other"); err == nil || !strings.Contains(err.Error(), "404 Not Found") {
		t.Errorf("error %v", err)
	}
	if _, err := Get(t.Context(), client, "http://\x00"); err == nil {
		t.Error("a page at no URL")
	}
	server.Close()
	if _, err := Get(t.Context(), client, server.URL+"/metrics"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("error %v of a server that is gone", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add("a{b=\"c\\\"\"} 1 2\n# x\n")
	f.Add("a{=\"\"} NaN\r\n{} 1")
	f.Fuzz(func(t *testing.T, text string) {
		page, err := Read(strings.NewReader(text))
		if err != nil {
			return
		}
		if len(page) > strings.Count(text, "\n")+1 {
			t.Fatalf("%d series in %q", len(page), text)
		}
		for _, s := range page {
			if s.Name == "" || !strings.Contains(text, s.Name) {
				t.Fatalf("series %q in %q", s.Name, text)
			}
		}
	})
}
