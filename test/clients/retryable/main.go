// Command retryable sends requests through go-retryablehttp as its maker ships it: nothing here
// looks at an answer's fields.
//
//	retryable URL REQUESTS CLIENTS PATHS CALLER
//
// as field.mjs has it.
package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/hashicorp/go-retryablehttp"
)

func main() {
	if len(os.Args) != 6 {
		fmt.Fprintln(os.Stderr, "want URL REQUESTS CLIENTS PATHS CALLER")
		os.Exit(2)
	}
	requests, err := strconv.Atoi(os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	var running sync.WaitGroup
	for path := range strings.SplitSeq(os.Args[4], ",") {
		running.Go(func() {
			got := send(os.Args[1]+path, os.Args[3]+"-"+os.Args[5], requests)
			fmt.Println(os.Args[3], path, strings.Join(got, " "))
		})
	}
	running.Wait()
}

// send returns the final status of each request.
func send(url, caller string, requests int) (got []string) {
	api := retryablehttp.NewClient()
	api.Logger = nil
	for range requests {
		request, err := retryablehttp.NewRequest("GET", url, nil)
		if err != nil {
			return append(got, err.Error())
		}
		request.Header.Set("x-caller", caller)
		answer, err := api.Do(request)
		if err != nil {
			got = append(got, err.Error())
			continue
		}
		answer.Body.Close()
		got = append(got, strconv.Itoa(answer.StatusCode))
	}
	return got
}
