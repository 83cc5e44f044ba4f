package boot

import (
	"fmt"
	"os"
	"strings"
)

// ReadLine reads a file that has one line, such as a key or an address with a password. what is the line, for the error.
func ReadLine(file, what string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	line := strings.TrimSpace(string(text))
	if line == "" || strings.ContainsAny(line, "\r\n") {
		return "", fmt.Errorf("%s must have one line: %s", file, what)
	}
	return line, nil
}
