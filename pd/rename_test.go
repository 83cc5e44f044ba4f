package pd_test

import (
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

func TestRename(t *testing.T) {
	for _, c := range []struct {
		name   string
		rename pd.Rename
		want   string
	}{
		{"as models are named", pd.Rename{Asked: "meta-llama/Llama-3.1-8B_Instruct:latest", Answers: "llama@v1~x+y"},
			"meta-llama/Llama-3.1-8B_Instruct:latest;answers=llama@v1~x+y"},
		{"what means something here", pd.Rename{Asked: "a;answers=b", Answers: "50% ,\""}, "a%3Banswers%3Db;answers=50%25%20%2C%22"},
		{"other scripts", pd.Rename{Asked: "模型", Answers: "é"}, "%E6%A8%A1%E5%9E%8B;answers=%C3%A9"},
		{"what no header may have", pd.Rename{Asked: "a\r\nx-evil: 1", Answers: "\x00\t\u007f"}, "a%0D%0Ax-evil%3A%201;answers=%00%09%7F"},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := strings.ReplaceAll(c.want, "%3A", ":") // names have colons
			if got := c.rename.String(); got != want {
				t.Errorf("prints as %s, want %s", got, want)
			}
			if back, err := pd.ParseRename(want); err != nil || back != c.rename {
				t.Errorf("%s is %+v, %v", want, back, err)
			}
		})
	}
}

func TestParseRenameRefuses(t *testing.T) {
	long := strings.Repeat("a", 3<<10)
	if _, err := pd.ParseRename(long + ";answers=b"); err != nil {
		t.Errorf("the longest: %v", err)
	}
	for _, c := range []struct{ name, in, err string }{
		{"nothing", "", "needs answers"},
		{"a name alone", "a", "needs answers"},
		{"another member", "a;by=b", "needs answers"},
		{"a blank", "a; answers=b", "needs answers"},
		{"a member more", "a;answers=b;x=y", "byte 0x3b is not encoded"},
		{"no client's name", ";answers=b", "1 to 3072 bytes"},
		{"no engine's name", "a;answers=", "1 to 3072 bytes"},
		{"a long name", long + "a;answers=b", "1 to 3072 bytes"},
		{"half a byte", "a%4;answers=b", "two hex digits"},
		{"a percent sign", "a;answers=b%", "two hex digits"},
		{"no digits", "%zz;answers=b", "two hex digits"},
		{"small digits", "%c3%a9;answers=b", "two hex digits"},
		{"no UTF-8", "%C3;answers=b", "UTF-8"},
		{"what should be encoded", "a b;answers=b", "byte 0x20 is not encoded"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := pd.ParseRename(c.in)
			if err == nil || got != (pd.Rename{}) || !strings.Contains(err.Error(), c.err) || !strings.Contains(err.Error(), pd.HeaderModel) {
				t.Errorf("got %+v, %v; want %q", got, err, c.err)
			}
		})
	}
}

func FuzzRename(f *testing.F) {
	f.Add("a;answers=b")
	f.Add("%E6%A8%A1;answers=50%25")
	f.Add("%E6%A8;answers=;")
	f.Fuzz(func(t *testing.T, in string) {
		r, err := pd.ParseRename(in)
		if err != nil {
			return
		}
		for _, c := range []byte(r.String()) {
			if c <= ' ' || c >= 0x7f || c == ',' || c == '"' {
				t.Fatalf("%q prints as %s", in, r)
			}
		}
		stable(t, in, r, pd.ParseRename)
	})
}
