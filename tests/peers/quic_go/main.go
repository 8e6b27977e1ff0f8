// A QUIC client on quic-go, as Fujin clients are: ALPN "fujin", default settings, no connection id of its own.
// For tests and benchmarks.
//
//	quic-go-peer ADDRESS APPLICATION echo STREAMS BYTES
//	quic-go-peer ADDRESS APPLICATION latency ROUNDS
//	quic-go-peer ADDRESS APPLICATION send MEGABYTES
//	quic-go-peer ADDRESS APPLICATION pull BYTES
//	quic-go-peer ADDRESS APPLICATION writes BYTES COUNT TOPIC
//	quic-go-peer ADDRESS APPLICATION reads BYTES COUNT TOPIC
//	quic-go-peer ADDRESS APPLICATION serve          the control, see serving.go
//
// The modes are those of the quinn peer. Prints one line of numbers.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strconv"
	"time"

	"github.com/quic-go/quic-go"
)

const chunk = 64 * 1024

var contextOfRun = context.Background()

func echo(connection *quic.Conn, streams, size int) error {
	results := make(chan error, streams)
	for number := 0; number < streams; number++ {
		go func() {
			stream, err := connection.OpenStreamSync(contextOfRun)
			if err != nil {
				results <- err
				return
			}
			sent := bytes.Repeat([]byte{byte(number % 251)}, size)
			go func() {
				stream.Write(sent)
				stream.Close()
			}()
			found, err := io.ReadAll(stream)
			if err == nil && !bytes.Equal(found, sent) {
				err = fmt.Errorf("stream %d came back otherwise", number)
			}
			results <- err
		}()
	}
	for number := 0; number < streams; number++ {
		if err := <-results; err != nil {
			return err
		}
	}
	fmt.Printf("%d streams of %d bytes\n", streams, size)
	return nil
}

func latency(connection *quic.Conn, rounds int) error {
	stream, err := connection.OpenStreamSync(contextOfRun)
	if err != nil {
		return err
	}
	message := bytes.Repeat([]byte{7}, 64)
	answer := make([]byte, 64)
	taken := make([]time.Duration, rounds)
	for round := range taken {
		begin := time.Now()
		if _, err := stream.Write(message); err != nil {
			return err
		}
		if _, err := io.ReadFull(stream, answer); err != nil {
			return err
		}
		taken[round] = time.Since(begin)
	}
	sort.Slice(taken, func(a, b int) bool { return taken[a] < taken[b] })
	fmt.Printf("p50 %d p99 %d\n", taken[rounds/2].Microseconds(), taken[rounds*99/100].Microseconds())
	return nil
}

func send(connection *quic.Conn, megabytes int) error {
	stream, err := connection.OpenStreamSync(contextOfRun)
	if err != nil {
		return err
	}
	if _, err := stream.Write([]byte("sink\n")); err != nil {
		return err
	}
	if _, err := io.ReadFull(stream, make([]byte, 5)); err != nil {
		return err
	}
	data := make([]byte, chunk)
	begin, sent := time.Now(), 0
	for sent < megabytes*1_000_000 {
		if _, err := stream.Write(data); err != nil {
			return err
		}
		sent += chunk
	}
	stream.Close()
	if _, err := io.ReadAll(stream); err != nil {
		return err
	}
	report(sent, begin)
	return nil
}

func pull(connection *quic.Conn, size int) error {
	stream, err := connection.OpenStreamSync(contextOfRun)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(stream, "push %d\n", size); err != nil {
		return err
	}
	begin := time.Now()
	pushed, err := connection.AcceptUniStream(contextOfRun)
	if err != nil {
		return err
	}
	found, err := io.Copy(io.Discard, pushed)
	if err != nil {
		return err
	}
	if found != int64(size) {
		return fmt.Errorf("%d bytes of %d", found, size)
	}
	report(size, begin)
	return nil
}

func report(size int, begin time.Time) {
	fmt.Printf("%.1f MB/s\n", float64(size)/1e6/time.Since(begin).Seconds())
}

func run(words []string) error {
	if len(words) == 3 && words[2] == "serve" {
		return serve(words[0], words[1])
	}
	if len(words) < 4 {
		return errors.New("ADDRESS APPLICATION MODE NUMBER ...")
	}
	numbers := make([]int, 0, 2)
	for _, word := range words[3:min(len(words), 5)] {
		number, err := strconv.Atoi(word)
		if err != nil {
			return err
		}
		numbers = append(numbers, number)
	}
	config := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{words[1]}}
	connection, err := quic.DialAddr(contextOfRun, words[0], config, nil)
	if err != nil {
		return err
	}
	defer connection.CloseWithError(0, "")
	switch words[2] {
	case "echo":
		return echo(connection, numbers[0], numbers[1])
	case "latency":
		return latency(connection, numbers[0])
	case "send":
		return send(connection, numbers[0])
	case "pull":
		return pull(connection, numbers[0])
	case "writes":
		return writes(connection, words[5], numbers[0], numbers[1])
	case "reads":
		return reads(connection, words[5], numbers[0], numbers[1])
	}
	return fmt.Errorf("no mode %s", words[2])
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
